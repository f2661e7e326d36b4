"""Applying and counting on a GPU, beside a copy of the logits: one run, ratios to the copy, two tables in Markdown.

    python -m benchmarks.gpu [--images 8] [--classes 20] [--height 1024] [--width 2048] [--compiled NAME ...]

*On the device* is the launch of the fused kernel with its tables ready, and of `conic` what looks around before. It is
timed as the copy and `torch.log_softmax` are: by events of the device around launches back to back, so that no time of
the host is in it. Everything else is a whole call, by the clock on the wall until the device is done. *Memory* is the
peak beyond the input, in inputs; 1 is the result alone. Tensor operations are what the kernels replace, also compiled
by ``torch.compile`` for those named by ``--compiled``, as long as there is time. Other libraries do the same on the
same device, in one call for all images; what they need to get probabilities is part of it, and they have no voxels to
ignore. A cell without a number says why.

``--fits cuda`` and ``--fits cpu`` time exact fits to 4 million voxels of 19 classes instead, with the strengths given,
in seconds; for two cores put ``taskset -c 0,1`` and ``OMP_NUM_THREADS=2`` before it.

Logits are smooth, as those of a network are (most blocks of voxels have one or two winners), or with ``--noise``
independent from voxel to voxel. What is being measured is said on stderr.
"""

import argparse
import json
import re
import sys
import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from segcal import make_calibrator
from segcal.calibrators import Calibrator
from segcal.calibrators.conic import USUAL
from segcal.cases import as_cases
from segcal.fitting.config import FitConfig
from segcal.fitting.fit import fit_to
from segcal.fitting.request import read_data
from segcal.kernels.raw_tables import Layout
from segcal.kernels.reliability import count_images, count_voxels, reference_count

GOALS = {"ts": 1.2, "vs": 1.2, "ms": 1.5, "dc": 1.5, "ets": 1.5, "cdc": 2.0, "cms_ap": 2.0, "cms_op": 3.0}
GOALS |= {"isotonic": 2.0, "conic": 3.0, "conic_class": 3.0, "pts": 2.0}
COUNTING_GOAL = 1.5
COMPILED = ["ts", "dc", "ets", "conic", "cms_ap"]
FIDUCIO = {"ts": "temperature scaling", "vs": "vector scaling", "ms": "matrix scaling", "dc": "Dirichlet calibration"}
FIDUCIO |= {"ets": "ensemble temperature scaling", "cdc": "class-conditional matrix scaling"}
FIDUCIO |= {"cms_ap": "argmax-preserving matrix scaling", "cms_op": "order-preserving matrix scaling"}
APPLYING = ["on the device, copies", "whole call, copies", "in place, copies", "memory beyond the input, inputs"]
APPLYING += ["tensor operations, copies", "compiled by `torch.compile`, copies", "goal, copies"]
COMPILED_AT = 5
OURS = ("all tables, one call", "all tables of each image, at once", "all tables of each image, image by image")
COUNTING = ["on the device, copies", "whole call, copies", "goal, copies"]
BINS, CLASS_BINS = 50, 15
FITTED = ["cdc", "cms_ap", "conic_class"]
FIT_CASES, FIT_VOXELS, FIT_CLASSES = 20, 200_000, 19
BEGIN = time.perf_counter()
Work = Callable[[], object]


class Bench(NamedTuple):
    """What everything is measured with.

    Attributes:
        logits: ``(images, classes, height, width)`` on the device.
        place: as large, for results.
        copy: the milliseconds of a copy from one to the other.
    """

    logits: Tensor
    place: Tensor
    copy: float

    def call(self, work: Work, repeats: int = 10, before: Work | None = None) -> str:
        """Return a whole call in copies."""
        return attempt(lambda: by_clock(work, repeats, before) / self.copy)

    def memory(self, work: Work) -> str:
        """Return the peak of memory in inputs."""
        return attempt(lambda: peak(work) / (self.logits.numel() * self.logits.element_size()))


def by_events(work: Work, launches: int = 10, repeats: int = 7) -> float:
    """Return the median milliseconds of a launch by the device's own clock, without waiting between launches."""
    work()
    found = []
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        work()  # while it runs the host gets ahead
        begin.record()
        for _ in range(launches):
            work()
        end.record()
        torch.cuda.synchronize()
        found.append(begin.elapsed_time(end) / launches)
    return float(np.median(found))


def by_clock(work: Work, repeats: int = 10, before: Work | None = None) -> float:
    """Return the median milliseconds of a whole call, until the device is done; `before` it nothing is timed."""
    found = []
    for _ in range(2 + repeats):
        if before is not None:
            before()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        work()
        torch.cuda.synchronize()
        found.append(1e3 * (time.perf_counter() - begin))
    return float(np.median(found[2:]))


def peak(work: Work) -> int:
    """Return the peak of memory beyond what is held before, in bytes."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    work()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def attempt(measure: Callable[[], float]) -> str:
    """Return a cell of a table: the number, or why there is none, such as for want of memory or of a library."""
    try:
        return shown(measure())
    except ModuleNotFoundError as error:
        return f"{error.name} not installed"
    except Exception as error:  # whatever a library does wrong is a cell without a number
        say(f"  {type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}")
        torch.cuda.empty_cache()
        return f"fails ({type(error).__name__})"


def shown(number: float) -> str:
    """Return a number with as many digits as can be told apart."""
    return f"{number:.2f}" if number < 9.995 else f"{number:,.0f}"


def say(words: str) -> None:
    """Tell on stderr how far it is."""
    print(f"{time.perf_counter() - BEGIN:5.0f} s  {words}", file=sys.stderr, flush=True)


def smooth(images: int, classes: int, height: int, width: int, noise: bool) -> Tensor:
    """Return logits: of a coarse field, resampled, with a little noise; or all noise."""
    generator = torch.Generator("cuda").manual_seed(0)
    if noise:
        return 4 * torch.randn(images, classes, height, width, device="cuda", generator=generator)
    coarse = torch.randn(images, classes, height // 64, width // 64, device="cuda", generator=generator)
    field = torch.nn.functional.interpolate(coarse, (height, width), mode="bicubic")
    return 6 * field + 0.3 * torch.randn(field.shape, device="cuda", generator=generator)


def labelled(logits: Tensor) -> Tensor:
    """Return labels with errors where classes are close, a tenth of them to be ignored."""
    generator = torch.Generator("cuda").manual_seed(1)
    noisy = (z + torch.randn(z.shape, device="cuda", generator=generator) for z in logits)
    labels = torch.stack([z.argmax(0) for z in noisy])
    labels[torch.rand(labels.shape, device="cuda", generator=generator) < 0.1] = -1
    return labels


def moved(name: str, classes: int) -> Calibrator:
    """Return a calibrator that is not the identity, without gradients."""
    options = {"contexts": USUAL} if name.startswith("conic") else {}
    calibrator = make_calibrator(name, classes, **options)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in calibrator.parameters():
            parameter += 0.05 * torch.rand(parameter.shape, dtype=parameter.dtype, generator=generator)
            parameter.requires_grad_(False)
        if name == "isotonic":
            calibrator.get_buffer("used").fill_(1)
    return calibrator.cuda()


def by_operations(calibrator: Calibrator, logits: Tensor) -> Tensor:
    """Return what the tensor operations make of it, normalised."""
    return torch.log_softmax(calibrator.scores(logits), dim=1)


def on_device(bench: Bench, calibrator: Calibrator) -> float:
    """Return the milliseconds of looking around and of a launch, which must give what a whole call gives."""
    from segcal.kernels import launch_triton

    plan, around = calibrator.plan(), calibrator.around(bench.logits, None)
    logits, place = bench.logits.flatten(2), bench.place.flatten(2)
    assert plan is not None
    prepared, around = launch_triton.prepare(plan, logits), None if around is None else around.flatten(2)
    bad = torch.zeros(1, dtype=torch.int32, device="cuda")

    def work() -> None:
        calibrator.around(bench.logits, None)
        launch_triton.launch(prepared, logits, place, bad, around, normalises=True)

    found = by_events(work)
    assert torch.equal(bench.place, calibrator(bench.logits)), "the kernel gives another result"
    return found


def counting_on_device(logits: Tensor, labels: Tensor, layout: Layout) -> float:
    """Return the milliseconds of the kernel that counts, started as a whole call starts it."""
    from segcal.kernels import reliability_triton

    kernel = reliability_triton.count_blocks
    launches: list[Work] = []

    class Recording:
        def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
            def launch(*given: Any, **more: Any) -> None:
                launches.append(lambda: kernel[grid](*given, **more))
                launches[-1]()

            return launch

    reliability_triton.count_blocks = Recording()
    try:
        count_voxels(logits, labels, layout)
    finally:
        reliability_triton.count_blocks = kernel
    return by_events(launches[0])


def apply_cells(bench: Bench, name: str) -> list[str]:
    """Return what applying a calibrator takes, with no number yet of what is compiled."""
    say(name)
    logits, place, copy = bench
    calibrator = moved(name, logits.shape[1])
    who = calibrator.served(logits)
    return [
        attempt(lambda: on_device(bench, calibrator) / copy) if who.by == "triton" else f"none: {who.reason}",
        bench.call(lambda: calibrator(logits, out=place)),
        bench.call(lambda: calibrator(place, out=place), before=lambda: place.copy_(logits)),
        bench.memory(lambda: calibrator(logits)),
        bench.call(lambda: by_operations(calibrator, logits), 3),
        "",
        f"{GOALS[name]:g}",
    ]


def compiled_cell(bench: Bench, name: str) -> str:
    """Return what the compiled tensor operations take."""
    say(f"{name}, compiled")
    torch.compiler.reset()
    calibrator, graph = moved(name, bench.logits.shape[1]), torch.compile(by_operations)
    return bench.call(lambda: graph(calibrator, bench.logits), 3)


def fiducio_cells(bench: Bench, name: str, labels: Tensor) -> list[str]:
    """Return what the same map takes with fiducio, whose parameters are those of a short fit to a corner."""
    say(f"fiducio: {name}")

    @cache
    def fitted() -> Any:
        import fiducio

        kind = getattr(fiducio, re.sub("[ -]", "", FIDUCIO[name].title()))
        return kind(max_iter=2, ignore_index=-1, device="cuda").fit(bench.logits[:1, :, :64, :64], labels[:1, :64, :64])

    def work() -> object:  # the first calls are not timed, and the fit is in one of these
        return fitted().transform(bench.logits)

    return ["", bench.call(work, 3), "", bench.memory(work), "", "", ""]


def count_works(logits: Tensor, labels: Tensor) -> dict[str, Work]:
    """Return ways of counting: of all our tables, and of what other libraries have."""
    classes = logits.shape[1]
    layout = Layout(classes, (BINS, 15), CLASS_BINS)
    whole, flat = logits.movedim(1, 0).reshape(classes, -1), labels.reshape(-1)
    truth = labels.clamp(min=0)
    hot = torch.zeros_like(logits).scatter_(1, truth[:, None], 1.0)

    def torchmetrics_ece() -> object:
        from torchmetrics.functional.classification import multiclass_calibration_error

        return multiclass_calibration_error(logits, truth, classes, n_bins=BINS)

    def monai_ece() -> object:
        from monai.metrics import CalibrationErrorMetric

        return CalibrationErrorMetric(num_bins=CLASS_BINS)(logits.softmax(1), hot)

    def fiducio_ece() -> object:
        from fiducio.metrics import expected_calibration_error

        return expected_calibration_error(logits.softmax(1), truth, n_bins=BINS)

    def fiducio_all() -> object:
        from fiducio.metrics import brier_score, negative_log_likelihood, reliability_curve

        probs = logits.softmax(1)
        negative_log_likelihood(probs, truth)
        brier_score(probs, truth)
        return reliability_curve(probs, truth, n_bins=BINS)

    return {
        OURS[0]: lambda: count_voxels(whole, flat, layout),
        OURS[1]: lambda: count_images(logits, labels, layout),
        OURS[2]: lambda: [count_voxels(z, y, layout) for z, y in zip(logits, labels, strict=True)],
        "all tables, tensor operations": lambda: reference_count(whole, flat, layout),
        "torchmetrics: ECE": torchmetrics_ece,
        "MONAI: class-wise ECE": monai_ece,
        "fiducio: ECE": fiducio_ece,
        "fiducio: ECE, ACE, NLL and Brier score": fiducio_all,
    }


def count_cells(bench: Bench, name: str, work: Work, labels: Tensor) -> list[str]:
    """Return what a way of counting takes; a median of few, since some take seconds."""
    say(name)
    if name not in OURS:
        return ["", bench.call(work, 3), ""]
    classes = bench.logits.shape[1]
    given = bench.logits.movedim(1, 0).reshape(classes, -1), labels.reshape(-1), Layout(classes, (BINS, 15), CLASS_BINS)
    alone = attempt(lambda: counting_on_device(*given) / bench.copy) if name == OURS[0] else ""
    return [alone, bench.call(work, 5), f"{COUNTING_GOAL:g}"]


def fit_seconds(device: str) -> dict[str, float]:
    """Return how long it takes to read voxels, and exact fits to them, after small ones, for what is compiled."""
    rng = np.random.default_rng(0)
    cases = [(3 * rng.normal(size=(FIT_CLASSES, 200, FIT_VOXELS // 200))).astype(np.float32) for _ in range(FIT_CASES)]
    labels = [(0.6 * z + rng.gumbel(size=z.shape)).argmax(0) for z in cases]
    config = FitConfig(lam=1.0, mu=1.0, nu=1.0, voxels=FIT_VOXELS, memory=8 << 30)
    found = {}
    for few in (True, False):
        given = [z[:, :, :20] if few else z for z in cases], [y[:, :20] if few else y for y in labels]
        begin = time.perf_counter()
        data = read_data(as_cases(*given, kind="logits"), None, config, suspect=True)
        found["reading"] = time.perf_counter() - begin
        for name in FITTED:
            say(f"fit of {name} on {device}")
            options = {"contexts": ()} if name.startswith("conic") else {}
            begin = time.perf_counter()
            fit_to(make_calibrator(name, FIT_CLASSES, **options), data, config, device)
            found[name] = time.perf_counter() - begin
    return found


def print_table(heads: Sequence[str], rows: dict[str, list[str]]) -> None:
    print(f"| {' | '.join(heads)} |\n| --- |{' ---: |' * (len(heads) - 1)}")
    for name, cells in rows.items():
        print(f"| {name} | {' | '.join(cells)} |")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("images", 8), ("classes", 20), ("height", 1024), ("width", 2048)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--noise", action="store_true")
    parser.add_argument("--only", nargs="*", choices=list(GOALS), default=list(GOALS), metavar="NAME")
    parser.add_argument(
        "--compiled", nargs="*", choices=list(GOALS), default=COMPILED, metavar="NAME",
        help="also torch.compile of the tensor operations of these, which takes its time",
    )  # fmt: skip
    parser.add_argument("--fits", choices=["cuda", "cpu"], help="only the seconds of fits there, as JSON")
    parser.add_argument("--seconds", type=float, default=110.0, help="after these nothing more is compiled")
    given = parser.parse_args()
    if given.fits:
        print(json.dumps(fit_seconds(given.fits)))
        return
    logits = smooth(given.images, given.classes, given.height, given.width, given.noise)
    place, labels = torch.empty_like(logits), labelled(logits)
    copy = by_events(lambda: place.copy_(logits), repeats=50)  # long enough for the device to get up to speed
    softmax = by_events(lambda: torch.log_softmax(logits, 1))
    bench = Bench(logits, place, copy)
    rows: dict[str, list[str]] = {}
    for name in given.only:
        rows[f"`{name}`"] = apply_cells(bench, name)
        if name in FIDUCIO:
            rows[f"fiducio: {FIDUCIO[name]}"] = fiducio_cells(bench, name, labels)
    counted = {name: count_cells(bench, name, work, labels) for name, work in count_works(logits, labels).items()}
    for name in given.compiled:
        if name in given.only:
            late = time.perf_counter() - BEGIN > given.seconds
            rows[f"`{name}`"][COMPILED_AT] = "no time" if late else compiled_cell(bench, name)
    size, kind = " x ".join(map(str, logits.shape)), "noise" if given.noise else "smooth"
    speed = 2 * logits.numel() * logits.element_size() / copy / 1e9
    print(f"{torch.cuda.get_device_name()}, {size} float32, {kind}: a copy takes {copy:.3f} ms ({speed:.2f} TB/s),")
    print(f"`torch.log_softmax` {shown(softmax / copy)} copies.\n")
    print_table(["applying", *APPLYING], rows)
    print()
    print_table(["counting", *COUNTING], counted)
    say("done")


if __name__ == "__main__":
    main()
