"""A reference in plain Python: one voxel after another, nothing imported from segcal."""

import math
from bisect import bisect_left

import pytest
import torch


def find_bin(value, bins):
    edges = [k / bins for k in range(bins + 1)]
    return min(max(bisect_left(edges, value) - 1, 0), bins - 1)


def count_one_by_one(scores, labels, bins, class_bins, bands=None, reference=None):
    """Count scores[c][v]; return a dict of the tables as nested dicts keyed by what was seen."""
    found = {"cells": {}, "confidence": {}, "class_count": {}, "class_hits": {}, "class_prob": {}, "confusion": {}}
    found |= {"flips": {}, "sums": [0.0, 0.0, 0.0], "energies": [], "ignored": 0, "prediction": [], "doubts": []}

    def add(table, key, amount):
        found[table][key] = found[table].get(key, 0) + amount

    for v, y in enumerate(labels):
        z = [float(row[v]) for row in scores]
        prediction = z.index(max(z))
        if reference is not None and z[reference[v]] == max(z):
            prediction = reference[v]
        found["prediction"].append(prediction)
        if y < 0:
            found["ignored"] += 1
            continue
        top = max(z)
        total = math.fsum(math.exp(value - top) for value in z)
        q = [math.exp(value - top) / total for value in z]
        zone = 2 if y > 0 else (1 if prediction > 0 else 0)
        band = 0 if bands is None else int(bands[v])
        first = 0
        for size in bins:
            cell = (band, zone, int(prediction == y), first + find_bin(max(q), size))
            add("cells", cell, 1)
            add("confidence", cell, max(q))
            first += size
        for c, value in enumerate(q):
            cell = (zone, c, find_bin(value, class_bins))
            add("class_count", cell, 1)
            add("class_hits", cell, int(c == y))
            add("class_prob", cell, value)
        add("confusion", (y, prediction), 1)
        if reference is not None and prediction != reference[v]:
            kind = 0 if reference[v] == y else (1 if prediction == y else 2)
            add("flips", (reference[v], prediction, kind), 1)
        energy = top + math.log(total)
        found["energies"].append(energy)
        found["doubts"].append((1 - max(q), prediction == y))
        found["sums"][0] += energy - z[y]
        found["sums"][1] += sum((value - (c == y)) ** 2 for c, value in enumerate(q))
        found["sums"][2] += sum(-value * math.log(value) for value in q if value > 0)
    return found


@pytest.fixture(scope="session")
def plain_count():
    return count_one_by_one


@pytest.fixture
def by_threads():
    """What a function gives in one thread, in two and in three."""

    def results(function):
        before, found = torch.get_num_threads(), []
        try:
            for threads in (1, 2, 3):
                torch.set_num_threads(threads)
                found.append(function())
        finally:
            torch.set_num_threads(before)
        return found

    return results
