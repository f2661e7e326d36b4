"""Conic scaling against networks, and with contexts that a network learns.

``python -m paper.learned_context PACKED OUT`` reads the archives of `learned_pack.py` and writes OUT/learned.json:
one row per ensemble, division and calibrator. The divisions are those of `protocols/conic.toml`. Networks are trained
on the calibration cases until eight looks at the validation cases have gained nothing; the best weights are kept. They
see the gaps to the winner, the probabilities, and four numbers of the neighbourhood: confidence in 41 x 41, share of
the own class in 25 x 25, confidence in the image, and disagreement of the members. They work in planes.

- ``pointwise``: two hidden layers of 32, each voxel alone; one positive factor for the gap of every class.
- ``dilated``: four 3 x 3 convolutions of 32 channels, dilated by 1, 2, 4, 8 (31 voxels), the same factors.
- ``trained``: the same convolutions end in three numbers between 0 and 1, which are contexts of a conic layer beside
  its usual three. Layer and convolutions are trained together; the layer starts as the fitted `conic`.
- ``learned``: these three contexts, fixed, beside the usual three, and all coefficients fitted anew by segcal's exact
  fit, strengths chosen on validation cases as always.

All keep the argmax. Beside them `ts`, `cms_ap`, `conic` and `conic_class`, fitted by segcal to the same cases.

While networks are trained, the other cores fit these four to 5, 10, 20 and 50 cases in all: strengths are chosen on
folds of them, 5,000 voxels of each; 20 test cases are drawn anew for every number. Groups stay whole, so there may be
fewer.
"""

import argparse
import json
import os
import tempfile
import threading
import time
import traceback
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, wait
from functools import lru_cache, partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from msgspec import structs
from torch import Tensor, nn

import segcal
from paper.learned_pack import PROTOCOL, PackedCases
from segcal.benchmark.protocol import load_protocol
from segcal.benchmark.tasks import Division
from segcal.calibrators.conic import Conic
from segcal.calibrators.neighbourhood import CONTEXTS, each_context, neighbourhood
from segcal.cases.split import Split
from segcal.fitting.artifact import save
from segcal.fitting.fit import fit_to
from segcal.fitting.request import FitData
from segcal.fitting.voxels import HeldVoxels, Voxels, draw, join
from segcal.kernels.distance_numba import squared_distances
from segcal.statistics.boundary import find_boundary
from segcal.types import Context

NAMED = ("ts", "conic", "cms_ap", "conic_class")
METRICS = ("nll", "ece", "ba_ece", "ace", "flip_rate")
USED = ("gap_far", "share_far", "gap_image")
# The places in which a conic layer finds what was learned: contexts that it does not use by itself.
LEARNED = [CONTEXTS.index(name) for name in CONTEXTS if name not in USED]
WIDTH, DILATIONS = 32, (1, 2, 4, 8)


class Settings(NamedTuple):
    """How much is done."""

    packed: Path
    scratch: Path
    device: str
    steps: int
    seconds: float
    voxels: int
    most_cases: int | None


@lru_cache(maxsize=1)
def divided(settings: Settings, task: str, repeat: int) -> Split[PackedCases]:
    """Return the cases of a division."""
    protocol = load_protocol(PROTOCOL)
    found = protocol.task(task)
    cases = PackedCases(settings.packed / f"{task}.zip", str(found.options.groups))
    split = protocol.divide(found, cases, repeat)
    return Split(*(part.subset(part.ids[: settings.most_cases]) for part in split))


# Fits by segcal, each in a process with one thread.


def fit_named(settings: Settings, task: str, repeat: int, name: str) -> dict[str, Any]:
    """Fit a calibrator of the registry and measure it."""
    start, split = time.monotonic(), divided(settings, task, repeat)
    fitted = segcal.fit(name, split.cal, validation=split.val, config=segcal.FitConfig(voxels=settings.voxels))
    save(fitted, settings.scratch / f"{task}-{repeat}-{name}")
    seconds = time.monotonic() - start
    return measured(split.test, fitted.calibrator) | _certified(fitted) | {"seconds": seconds}


def fit_few(settings: Settings, task: str, repeat: int, size: int) -> dict[str, Any]:
    """Fit to few cases, without others for validation; return what is measured, by calibrator."""
    protocol = load_protocol(PROTOCOL)
    found = structs.replace(protocol.task(task), split=Division(cal=size, val=0, test=20))
    cases = PackedCases(settings.packed / f"{task}.zip", str(found.options.groups))
    split = protocol.divide(found, cases, repeat)
    test, about = split.test.subset(split.test.ids[: settings.most_cases]), {"size": size, "cal": len(split.cal)}
    config, rows = segcal.FitConfig(voxels=min(5000, settings.voxels)), {}
    for name in NAMED:
        fitted = segcal.fit(name, split.cal, config=config)
        rows[name] = about | measured(test, fitted.calibrator) | _certified(fitted)
    return rows


def refit(settings: Settings, task: str, repeat: int) -> dict[str, Any]:
    """Fit the conic layer on learned contexts to its optimum, and measure it."""
    start, split = time.monotonic(), divided(settings, task, repeat)
    contexts = np.load(settings.scratch / f"{task}-{repeat}-contexts.npz")
    sources = [sampled(part, contexts, settings.voxels) for part in (split.cal, split.val)]
    layer = segcal.make_calibrator("conic", split.cal.num_classes, contexts=list(CONTEXTS))
    fitted = fit_to(layer, FitData(split.cal, split.val, *sources), segcal.FitConfig(), "cpu")
    seconds, calibrator = time.monotonic() - start, fitted.calibrator

    def apply(logits: Tensor, context: Context) -> Tensor:
        assert context.image is not None
        flat = logits.float().reshape(1, logits.shape[1], -1)[0]
        rows = around(logits, context.image[0])
        return calibrator.scores_at(flat, rows).log_softmax(0).reshape(logits.shape)

    split.test.images = _OnDisk(settings.scratch / f"{task}-{repeat}-contexts.npz")
    return measured(split.test, apply) | _certified(fitted) | {"seconds": seconds}


def around(logits: Tensor, learned: Tensor) -> Tensor:
    """Return the contexts ``(all, n)`` of one case, learned ones in places that are free."""
    found = each_context(logits.float(), Context(), USED)
    found[LEARNED] = learned.float().reshape(len(LEARNED), -1)
    return found


def sampled(cases: PackedCases, contexts: Any, per_case: int) -> HeldVoxels:
    """Draw voxels as a fit does."""
    parts: dict[str, Voxels] = {}
    available = 0
    for case in cases:
        assert case.labels is not None
        labels, flat = case.labels.reshape(-1), case.logits.reshape(len(case.logits), -1).contiguous()
        distance = torch.from_numpy(np.sqrt(squared_distances(find_boundary(case.labels.numpy())))).float().reshape(-1)
        rows = around(case.logits[None], torch.from_numpy(contexts[case.id]))
        voxels = Voxels(flat, labels.to(torch.int32), torch.ones(labels.shape), rows, distance).take(labels >= 0)
        rng = np.random.default_rng([0, zlib.crc32(case.id.encode())])
        parts[case.id] = draw(voxels, per_case, rng)
        available += voxels.labels.numel()
    return HeldVoxels(join(list(parts.values())), {name: one.labels.numel() for name, one in parts.items()}, available)


class _OnDisk(dict[str, Tensor]):
    """Arrays of an npz file, by case, read when they are asked for."""

    def __init__(self, path: Path) -> None:
        self._file = np.load(path)

    def get(self, key: str, default: Any = None) -> Any:
        return torch.from_numpy(self._file[key])


def measure_scores(settings: Settings, task: str, repeat: int, name: str) -> dict[str, Any]:
    """Measure the scores that a network left."""
    test = divided(settings, task, repeat).test
    test.images = _OnDisk(settings.scratch / f"{task}-{repeat}-{name}.npz")

    def apply(_: Tensor, context: Context) -> Tensor:
        assert context.image is not None
        return context.image.float().log_softmax(1)

    return measured(test, apply)


def measured(cases: PackedCases, calibrator: Any) -> dict[str, Any]:
    """Return means and, in the order of their ids, numbers of all cases."""
    found = segcal.evaluate(cases, calibrator, metrics=METRICS, replicates=1)
    assert found.after is not None
    rows = sorted((row for row in found.rows if row["stage"] == "after"), key=lambda row: row["case"])
    numbers = {name: [row[name] for row in rows] for name in METRICS if name != "ace"}
    return {"means": {name: found.after[name].value for name in METRICS}, "cases": numbers}


def _certified(fitted: segcal.Fitted) -> dict[str, Any]:
    certificate = fitted.certificate
    kept = {"kkt_residual": certificate.kkt_residual, "converged": certificate.converged, "strength": certificate.nu}
    return kept | {"parameters": fitted.calibrator.num_parameters()}


# Networks, all of one ensemble in one process.


class Plane(NamedTuple):
    """A plane of a case: gaps ``(C, H, W)`` in codes, neighbourhood ``(4, H, W)``, labels ``(H, W)``."""

    logits: Tensor
    around: Tensor
    labels: Tensor


@lru_cache(maxsize=1)
def planes_of(settings: Settings, task: str) -> dict[str, list[Plane]]:
    """Return the planes of every case, on the device, in half precision."""
    cases = PackedCases(settings.packed / f"{task}.zip", "(.*)")
    wanted = cases.ids
    if settings.most_cases:
        wanted = tuple(name for repeat in range(3) for part in divided(settings, task, repeat) for name in part.ids)
    found: dict[str, list[Plane]] = {}
    for name in dict.fromkeys(wanted):
        case = cases.read(name)
        assert case.labels is not None
        logits = case.logits.to(settings.device)
        near = neighbourhood(logits[None], None, USED, "conic")[0]
        rows = torch.cat([near, cases.log_information(name).to(near)[None]]).half()
        parts = (logits.half(), rows, case.labels.to(torch.int8).to(settings.device)[None])
        if logits.ndim == 3:
            parts = tuple(part[:, None] for part in parts)
        found[name] = [
            Plane(*(part[:, z] for part in parts)) for z in range(logits.shape[-3] if logits.ndim > 3 else 1)
        ]
    return found


def batch_of(planes: Sequence[Plane]) -> tuple[Tensor, Tensor, Tensor]:
    """Return logits, neighbourhood and labels ``(batch, channels, H, W)`` of planes of one size."""
    logits, rows, labels = (torch.stack(column) for column in zip(*planes, strict=True))
    return logits.float(), rows.float(), labels[:, 0].long()


def crops(planes: dict[str, list[Plane]], names: Sequence[str], rng: np.random.Generator) -> list[Plane]:
    """Return crops of twelve planes of cases drawn anew."""
    chosen = []
    for name in rng.choice(np.array(names), 12):
        chosen.append(planes[name][rng.integers(len(planes[name]))])
    size = [min(144, *(plane.labels.shape[axis] for plane in chosen)) for axis in (-2, -1)]
    cut = []
    for plane in chosen:
        top, left = (int(rng.integers(plane.labels.shape[axis] - size[axis] + 1)) for axis in (-2, -1))
        cut.append(Plane(*(part[:, top : top + size[0], left : left + size[1]] for part in plane)))
    return cut


class Trunk(nn.Module):
    """Channels that a voxel's scores are made of."""

    def __init__(self, classes: int, out: int, kernel: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        inside = 2 * classes + len(USED) + 1
        for dilation in DILATIONS if kernel > 1 else (1, 1):
            pad = dilation * (kernel // 2)
            layers += [nn.Conv2d(inside, WIDTH, kernel, padding=pad, dilation=dilation), nn.ReLU()]
            inside = WIDTH
        self.layers, self.last = nn.Sequential(*layers), nn.Conv2d(WIDTH, out, 1)

    def forward(self, logits: Tensor, rows: Tensor) -> Tensor:
        """Return ``(batch, out, H, W)``."""
        scale = rows.new_tensor([1 / 8, 1, 1 / 8, 1 / 14]).reshape(1, -1, 1, 1)
        seen = torch.cat([logits.clamp(min=-16) / 8, logits.softmax(1), rows * scale], 1)
        return self.last(self.layers(seen))


class Factors(nn.Module):
    """One positive factor for the gap of every class."""

    def __init__(self, classes: int, kernel: int) -> None:
        super().__init__()
        self.trunk = Trunk(classes, classes, kernel)
        nn.init.zeros_(self.trunk.last.weight)
        nn.init.zeros_(self.trunk.last.bias)

    def forward(self, logits: Tensor, rows: Tensor) -> Tensor:
        """Return scores, zero for the winner."""
        return logits * self.trunk(logits, rows).clamp(-5, 5).exp()

    def project(self) -> None:
        """Nothing is bounded."""


class Contexts(nn.Module):
    """A conic layer with three learned contexts beside its usual ones."""

    def __init__(self, classes: int, start: Conic) -> None:
        super().__init__()
        self.trunk = Trunk(classes, len(LEARNED), 3)
        self.layer = layer = Conic(classes, contexts=CONTEXTS)
        spans, tables = _by_context(layer)
        own = dict(zip(start.contexts, zip(*_by_context(start), strict=True), strict=True))
        with torch.no_grad():
            layer.knots.copy_(start.knots)
            layer.base.copy_((start.base - 0.15).clamp(min=1e-2))
            for number, name in enumerate(CONTEXTS):
                if name in own:
                    spans[number].copy_(own[name][0])
                    tables[number].copy_(own[name][1])
                elif number in LEARNED:
                    rise = torch.linspace(0, 1, len(spans[number]), dtype=torch.float64)
                    spans[number].copy_(rise)
                    tables[number].copy_(0.1 * (rise if number else 1 - rise)[:, None].expand_as(tables[number]))

    def contexts(self, logits: Tensor, rows: Tensor) -> Tensor:
        """Return what was learned, between 0 and 1."""
        return self.trunk(logits, rows).sigmoid()

    def forward(self, logits: Tensor, rows: Tensor) -> Tensor:
        """Return scores, zero for the winner."""
        learned = self.contexts(logits, rows)
        full = torch.empty(len(CONTEXTS), learned[:, 0].numel(), device=learned.device)
        columns = list(full.unbind(0))
        for place, column in zip(LEARNED, learned.unbind(1), strict=True):
            columns[place] = column.reshape(-1)
        for name, column in zip(USED, rows[:, : len(USED)].unbind(1), strict=True):
            columns[CONTEXTS.index(name)] = column.reshape(-1)
        flat = logits.movedim(1, 0).reshape(logits.shape[1], -1)
        scores = self.layer.scores_at(flat, torch.stack(columns))
        return scores.reshape(logits.shape[1], len(logits), *logits.shape[2:]).movedim(0, 1)

    @torch.no_grad()
    def project(self) -> None:
        """Keep coefficients where the exact fit keeps them."""
        self.layer.base.clamp_(min=1e-3)
        self.layer.hats.clamp_(min=0)


def _by_context(layer: Conic) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Return knots and coefficients of every context; they can be written to."""
    return layer.hat_knots.split(layer.hat_counts), layer.hats.detach().split(layer.hat_counts)


def train(settings: Settings, task: str, repeat: int, name: str) -> dict[str, Any]:
    """Train a network and leave its scores of test cases, and what it learned of all cases."""
    start = time.monotonic()
    planes, split = planes_of(settings, task), divided(settings, task, repeat)
    classes = split.cal.num_classes
    torch.manual_seed(repeat)
    net: Factors | Contexts
    if name == "trained":
        fitted = segcal.load(settings.scratch / f"{task}-{repeat}-conic").calibrator
        assert isinstance(fitted, Conic)
        net = Contexts(classes, fitted)
    else:
        net = Factors(classes, 3 if name == "dilated" else 1)
    net.to(settings.device)
    begun = time.monotonic()
    history = descend(net, planes, split, np.random.default_rng([7, repeat]), settings.steps, settings.seconds)
    trained = time.monotonic() - begun
    _keep(settings.scratch / f"{task}-{repeat}-{name}.npz", net, planes, split.test.ids)
    if isinstance(net, Contexts):
        every = [case_id for part in split for case_id in part.ids]
        _keep(settings.scratch / f"{task}-{repeat}-contexts.npz", net.contexts, planes, every)
    size = sum(parameter.numel() for parameter in net.parameters())
    return {"parameters": size, "seconds": time.monotonic() - start, "training": trained, "validation": history}


def descend(
    net: Factors | Contexts,
    planes: dict[str, list[Plane]],
    split: Split[PackedCases],
    rng: np.random.Generator,
    steps: int,
    seconds: float,
) -> list[float]:
    """Train by Adam; keep the weights with the lowest mean NLL of validation cases, of which all are returned."""
    optimiser = torch.optim.Adam(net.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    history, start = [validated(net, planes, split.val.ids)], time.monotonic()
    best = {key: value.clone() for key, value in net.state_dict().items()}
    every = max(1, steps // 20)
    for step in range(1, steps + 1):
        logits, rows, labels = batch_of(crops(planes, split.cal.ids, rng))
        loss = nn.functional.cross_entropy(net(logits, rows), labels, ignore_index=-1)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()
        schedule.step()
        net.project()
        if step % every == 0:
            history.append(validated(net, planes, split.val.ids))
            if history[-1] == min(history):
                best = {key: value.clone() for key, value in net.state_dict().items()}
            elif min(history[-8:]) > min(history) or time.monotonic() - start > seconds:
                break
    net.load_state_dict(best)
    return history


@torch.no_grad()
def validated(net: nn.Module, planes: dict[str, list[Plane]], names: Sequence[str]) -> float:
    """Return the mean over cases of the mean NLL of their voxels."""
    means = []
    for name in names:
        logits, rows, labels = batch_of(planes[name])
        means.append(nn.functional.cross_entropy(net(logits, rows), labels, ignore_index=-1))
    return float(torch.stack(means).mean())


@torch.no_grad()
def _keep(
    path: Path, made: Callable[[Tensor, Tensor], Tensor], planes: dict[str, list[Plane]], ids: Sequence[str]
) -> None:
    found = {}
    for name in ids:
        logits, rows, _ = batch_of(planes[name])
        values = made(logits, rows).movedim(1, 0).half().cpu().numpy()
        found[name] = values if values.shape[1] > 1 else values[:, 0]
    np.savez(path, **found)


# Everything together: one thread for each division, which waits for processes.


class Rows:
    """Rows as they come, written after each."""

    def __init__(self, out: Path, about: dict[str, Any]) -> None:
        self._path, self._lock, self._start = out / "learned.json", threading.Lock(), time.monotonic()
        self._content: dict[str, Any] = {"about": about, "rows": []}

    def add(self, task: str, repeat: int, row: str, found: dict[str, Any]) -> None:
        """Keep a row."""
        with self._lock:
            self._content["rows"].append({"task": task, "repeat": repeat, "row": row, **found})
            self._content["about"]["seconds"] = time.monotonic() - self._start
            text = json.dumps(self._content, default=float)
            self._path.write_text(text, encoding="utf-8")
            print(
                f"{time.monotonic() - self._start:6.0f} s  {task} {repeat} {row}: {found.get('means', found)}",
                flush=True,
            )


def division(settings: Settings, task: str, repeat: int, processes: Executor, device: Executor, rows: Rows) -> None:
    """Make all rows of a division."""

    def add(row: str, more: dict[str, Any], future: Future[dict[str, Any]]) -> None:
        error = future.exception()
        found = {"error": "".join(traceback.format_exception(error))} if error else more | future.result()
        rows.add(task, repeat, row, found)

    def submit(row: str, more: dict[str, Any], work: Callable[..., dict[str, Any]], *extra: str) -> Future[Any]:
        future = processes.submit(work, settings, task, repeat, *extra)
        future.add_done_callback(partial(add, row, more))
        return future

    try:
        fits = {name: submit(name, {}, fit_named, name) for name in NAMED}
        nets = {name: device.submit(train, settings, task, repeat, name) for name in ("pointwise", "dilated")}
        waiting = [submit(name, net.result(), measure_scores, name) for name, net in nets.items()]
        fits["conic"].result()
        more = device.submit(train, settings, task, repeat, "trained").result()
        waiting.append(submit("learned", {}, refit))
        waiting.append(submit("trained", more, measure_scores, "trained"))
        wait([*fits.values(), *waiting])
    except Exception:
        rows.add(task, repeat, "division", {"error": traceback.format_exc()})


def _one_thread() -> None:
    torch.set_num_threads(1)


def run(settings: Settings, tasks: Sequence[str], repeats: int, sizes: Sequence[int], workers: int, out: Path) -> None:
    """Run all divisions and write the rows."""
    out.mkdir(parents=True, exist_ok=True)
    os.environ |= {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
    about = {"steps": settings.steps, "voxels": settings.voxels, "torch": torch.__version__, "device": settings.device}
    if settings.device == "cuda":
        about["device"] = torch.cuda.get_device_name()
    rows, spawn = Rows(out, about), get_context("spawn")
    few = ProcessPoolExecutor(max(1, workers // 3), spawn, _one_thread)
    with ProcessPoolExecutor(workers - workers // 3, spawn, _one_thread) as processes, few:
        devices = {task: ProcessPoolExecutor(1, spawn, _one_thread) for task in tasks}
        for task in tasks:  # they read while loops are compiled
            devices[task].submit(planes_of, settings, task)
        list(processes.map(_compiled, NAMED))
        threads = [
            threading.Thread(target=division, args=(settings, task, repeat, processes, devices[task], rows))
            for repeat in range(repeats)
            for task in tasks
        ]
        for thread in threads:
            thread.start()
        for size, repeat, task in product(sizes, range(repeats), tasks):
            future = few.submit(fit_few, settings, task, repeat, size)
            future.add_done_callback(partial(_add_few, rows, task, repeat))
        for thread in threads:
            thread.join()
        for executor in devices.values():
            executor.shutdown()


def _add_few(rows: Rows, task: str, repeat: int, future: Future[dict[str, Any]]) -> None:
    error = future.exception()
    for name, found in ({"few": {"error": str(error)}} if error else future.result()).items():
        rows.add(task, repeat, name, {"size": 0} | found)


def _compiled(name: str) -> None:
    """Fit and measure next to nothing, so that compiled loops lie in the cache."""
    rng = np.random.default_rng(0)
    logits = 3 * rng.normal(size=(6, 3, 24, 23)).astype("float32")
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(1)
    cases = segcal.ArrayCases(list(logits), list(labels))
    fitted = segcal.fit(name, cases.subset(cases.ids[:4]), validation=cases.subset(cases.ids[4:]))
    segcal.evaluate(cases, fitted, metrics=METRICS, replicates=1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("packed", type=Path, help="the folder of archives")
    parser.add_argument("out", type=Path, help="a folder for the rows")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--steps", type=int, default=1000, help="of training")
    parser.add_argument("--seconds", type=float, default=20.0, help="after which a training ends at its next look")
    parser.add_argument("--voxels", type=int, default=20_000, help="of a case, in fits by segcal")
    parser.add_argument("--workers", type=int, default=15)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--sizes", type=int, nargs="*", default=[5, 10, 20, 50])
    parser.add_argument("--tasks", default="camvid,roads,cardiac")
    parser.add_argument("--most-cases", type=int, help="of each part, for a trial")
    a = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = True
    with tempfile.TemporaryDirectory() as scratch:
        settings = Settings(a.packed, Path(scratch), a.device, a.steps, a.seconds, a.voxels, a.most_cases)
        run(settings, a.tasks.split(","), a.repeats, a.sizes, a.workers, a.out)
