"""The section on regions: the lowest number is bold, the difference is to the better of those that move masks."""

import json

from paper.regions_page import regions


def test_rows_are_of_the_numbers(tmp_path):
    rows = {
        "none": {"nll": [0.5, 0.4, 0.6], "flips": 0.0},
        "conic_class": {"nll": [0.25, 0.2, 0.3], "flips": 0.0},
        "platt": {"nll": [0.3, 0.2, 0.4], "flips": 0.02},
        "isotonic": {"nll": [0.2, 0.1, 0.3], "flips": 0.0011},
    }
    against = {"platt": {"nll": [-0.05, -0.06, -0.04]}, "isotonic": {"nll": [0.05, -0.01, 0.06]}}
    kept = {"cardiac": {"regions": {"heart": {"calibrators": rows, "against": against}}}}
    (tmp_path / "regions.json").write_text(json.dumps(kept))
    assert [line for line in regions(tmp_path / "regions.json") if "heart" in line] == [
        "| cardiac | heart | 0.5000 | 0.2500 | 0.3000 (2 %) | **0.2000** (0.11 %) | +0.0500 [-0.0100, +0.0600] |"
    ]


def test_without_results_there_is_no_section(tmp_path):
    assert list(regions(tmp_path / "regions.json")) == []
