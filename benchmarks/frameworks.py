"""Measure what one line in each framework costs, and that it changes no label: the table of docs/howto/README.md.

    python -m benchmarks.frameworks [--write] [--nnunet MODEL IMAGES CALIBRATOR]

For each framework there are three functions: `plain`, the framework's own way to probabilities; `by_hand`, what a user
writes today to have them calibrated by a temperature; `now`, the same with segcal and any calibrator. All are run.
Lines are those of the functions, without imports; time is processor time of `now` beside `plain`, the least of several
turns in one process; labels are those of `now` beside `plain`. Networks are small and have random weights, so that the
calibrator weighs more than it will.
`--nnunet` takes a trained model's folder, images and a calibrator; its `by_hand` reads back what nnU-Net saved. Without
it, `--write` leaves the line of nnU-Net as it is.
"""

import argparse
import inspect
import re
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

import segcal
from benchmarks.tables import Section, stamp

PAGE = Path(__file__).parents[1] / "docs" / "howto" / "README.md"
MARK = "<!-- table: frameworks -->"
CLASSES = 4
REPEATS = 9


class Line(NamedTuple):
    """One line of the table; `apart` is how far the probabilities of both calibrated ways are from each other."""

    stack: str
    page: str
    before: int
    now: int
    time: float
    flips: int
    voxels: int
    apart: float


def fitted() -> Any:
    generator = torch.Generator().manual_seed(0)
    logits = 4 * torch.randn(6, CLASSES, 24, 20, generator=generator)
    noise = -torch.rand(logits.shape, generator=generator).log().neg().log()
    return segcal.fit("ts", logits, (logits / 3 + noise).argmax(1))


def network(axes: int = 2) -> nn.Module:
    torch.manual_seed(0)
    conv: Any = {2: nn.Conv2d, 3: nn.Conv3d}[axes]
    layers = [conv(1, 32, 3, padding=1), nn.ReLU(), conv(32, 32, 3, padding=1), nn.ReLU(), conv(32, CLASSES, 1)]
    return nn.Sequential(*layers).eval()


def count_lines(function: Callable[..., Any]) -> int:
    """Return the lines of a function's body, without imports, blank lines and its docstring."""
    lines = [line.strip() for line in inspect.getsource(function).splitlines()[1:]]
    return len([line for line in lines if line and not line.startswith(("import ", "from ", '"""', "#"))])


def compared(stack: str, page: str, plain: Any, by_hand: Any, now: Any, given: tuple[Any, ...], cal: Any) -> Line:
    """Run, count and time the three ways; each returns probabilities ``(batch, classes, *space)``."""
    temperature = cal.calibrator.temperature
    before, hand, found = plain(*given), by_hand(*given, temperature), now(*given, cal)
    times: dict[str, list[float]] = {"plain": [], "now": []}
    for _ in range(REPEATS):
        for name, call in (("plain", lambda: plain(*given)), ("now", lambda: now(*given, cal))):
            start = time.process_time()
            call()
            times[name].append(time.process_time() - start)
    cost = min(times["now"]) / min(times["plain"])
    flips = int((found.argmax(1) != before.argmax(1)).sum())
    lines = count_lines(by_hand), count_lines(now)
    return Line(stack, page, *lines, cost, flips, before[:, 0].numel(), float((found - hand).abs().max()))


def torch_plain(net: nn.Module, image: Tensor) -> Tensor:
    return net(image).softmax(1)


def torch_by_hand(net: nn.Module, image: Tensor, temperature: float) -> Tensor:
    logits = net(image)
    return torch.softmax(logits / temperature, 1)


def torch_now(net: nn.Module, image: Tensor, cal: Any) -> Tensor:
    return segcal.attach(net, cal)(image).exp()


class Scaled(nn.Module):
    """What is exported by hand."""

    def __init__(self, net: nn.Module, temperature: float) -> None:
        super().__init__()
        self.net, self.temperature = net, temperature

    def forward(self, image: Tensor) -> Tensor:  # noqa: D102
        return torch.log_softmax(self.net(image) / self.temperature, 1)


def onnx_by_hand(net: nn.Module, image: Tensor, folder: str, temperature: float) -> str:
    sizes = {0: torch.export.Dim.DYNAMIC, 2: torch.export.Dim.DYNAMIC, 3: torch.export.Dim.DYNAMIC}
    whole = Scaled(net, temperature).eval()
    program = torch.onnx.export(whole, (image,), dynamic_shapes=(sizes,), dynamo=True, verbose=False)
    program.save(f"{folder}/hand.onnx")
    return f"{folder}/hand.onnx"


def onnx_now(net: nn.Module, image: Tensor, folder: str, cal: Any) -> str:
    return str(segcal.export(cal, f"{folder}/now.onnx", model=net, example=image).path)


def hf_plain(net: Any, image: Tensor) -> Tensor:
    logits = net(image).logits
    return nn.functional.interpolate(logits, size=image.shape[2:], mode="bilinear", align_corners=False).softmax(1)


def hf_by_hand(net: Any, image: Tensor, temperature: float) -> Tensor:
    coarse = net(image).logits
    logits = nn.functional.interpolate(coarse, size=image.shape[2:], mode="bilinear", align_corners=False)
    return torch.softmax(logits / temperature, 1)


def hf_now(net: Any, image: Tensor, cal: Any) -> Tensor:
    from segcal.integrations.transformers import CalibratedSegmentation

    return CalibratedSegmentation(net, cal)(image).logits.exp()


def monai_plain(inferer: Any, net: nn.Module, image: Tensor) -> Tensor:
    return inferer(image, net).softmax(1)


def monai_by_hand(inferer: Any, net: nn.Module, image: Tensor, temperature: float) -> Tensor:
    logits = inferer(image, net)
    return torch.softmax(logits / temperature, 1)


def monai_now(inferer: Any, net: nn.Module, image: Tensor, cal: Any) -> Tensor:
    from segcal.integrations.monai import CalibratedInferer

    return CalibratedInferer(inferer, cal)(image, net).exp()


def ece_plain(probs: Tensor, labels: Tensor) -> float:
    from torchmetrics.classification import MulticlassCalibrationError

    metric = MulticlassCalibrationError(CLASSES, n_bins=15)
    return float(metric(probs, labels))


def ece_by_hand(probs: Tensor, labels: Tensor) -> float:
    confidence, predicted = probs.double().max(1)
    place = (confidence * 15).ceil().long().clamp(1, 15).flatten() - 1
    right = (predicted == labels).flatten()
    count = torch.bincount(place, minlength=15)
    hits = torch.bincount(place[right], minlength=15)
    sums = torch.bincount(place, weights=confidence.flatten(), minlength=15)
    return float((hits - sums).abs().sum() / count.sum())


def ece_now(probs: Tensor, labels: Tensor) -> float:
    from segcal.integrations.torchmetrics import SegmentationCalibration

    metric = SegmentationCalibration("ece", CLASSES, kind="probs", bins=15, average="voxels")
    return float(metric(probs, labels))


def nnunet_plain(model: Path, images: Path, out: Path) -> None:
    from nnunetv2.inference.predict_from_raw_data import nnUNetPredictor

    predictor = nnUNetPredictor(device=torch.device("cpu"), allow_tqdm=False)
    predictor.initialize_from_trained_model_folder(str(model), None)
    predictor.predict_from_files_sequential(str(images), str(out), save_probabilities=True)


def nnunet_by_hand(saved: Path, out: Path, temperature: float) -> None:
    for path in saved.glob("*.npz"):
        probs = torch.from_numpy(np.load(path)["probabilities"])
        logits = probs.clamp(min=1e-30).log()
        found = torch.softmax(logits / temperature, 0)
        outside = (probs[0] == 1) & (probs[1:] == 0).all(0)  # the padding of the crop; certain voxels, too
        found[:, outside] = probs[:, outside]
        np.savez_compressed(out / path.name, probabilities=found.numpy())


def nnunet_now(model: Path, images: Path, out: Path, cal: Any) -> None:
    from segcal.integrations.nnunet import CalibratedPredictor

    predictor = CalibratedPredictor(cal, device=torch.device("cpu"), allow_tqdm=False)
    predictor.initialize_from_trained_model_folder(str(model), None)
    predictor.predict_from_files_sequential(str(images), str(out), save_probabilities=True)


def onnx_line(cal: Any) -> Line:
    import onnxruntime

    net, image = network(), torch.randn(2, 1, 256, 240)
    with tempfile.TemporaryDirectory() as folder:
        same = segcal.make_calibrator("identity", CLASSES)
        plain = str(segcal.export(same, f"{folder}/plain.onnx", model=net, example=image).path)
        written = [
            plain,
            onnx_by_hand(net, image, folder, cal.calibrator.temperature),
            onnx_now(net, image, folder, cal),
        ]
        runs = [onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]) for path in written]

        def run(number: int) -> Any:
            return lambda *_: torch.from_numpy(runs[number].run(None, {"image": image.numpy()})[0]).exp()

        line = compared("ONNX, torch.export", "onnx", run(0), run(1), run(2), (), cal)
    return line._replace(before=count_lines(onnx_by_hand) + count_lines(Scaled), now=count_lines(onnx_now))


def metric_line(cal: Any) -> Line:
    probs = (3 * torch.randn(2, CLASSES, 64, 64, 32)).softmax(1)
    labels = torch.randint(0, CLASSES, probs[:, 0].shape)
    times: dict[Any, list[float]] = {ece_plain: [], ece_now: []}
    for _ in range(REPEATS):
        for call, taken in times.items():
            start = time.process_time()
            call(probs, labels)
            taken.append(time.process_time() - start)
    cost = min(times[ece_now]) / min(times[ece_plain])
    apart = abs(ece_now(probs, labels) - ece_by_hand(probs, labels))
    return Line("torchmetrics", "lightning", count_lines(ece_by_hand), count_lines(ece_now), cost, 0, 0, apart)


def nnunet_line(model: Path, images: Path, folder: Path) -> Line:
    cal = segcal.load(folder)
    with tempfile.TemporaryDirectory() as work:
        taken: dict[str, list[float]] = {"plain": [], "now": []}
        for turn in range(3):  # the first is to warm up
            for name in taken:
                out = Path(work) / f"{name}{turn}"
                out.mkdir()
                start = time.process_time()
                nnunet_plain(model, images, out) if name == "plain" else nnunet_now(model, images, out, cal)
                taken[name].append(time.process_time() - start)
                peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
                print(f"{name}: {taken[name][-1]:.2f} s, peak memory so far {peak:.0f} MB", file=sys.stderr)
        hand, applied = Path(work) / "hand", Path(work) / "applied"
        hand.mkdir()
        nnunet_by_hand(Path(work) / "plain0", hand, cal.calibrator.temperature)
        segcal.apply(cal, segcal.open_cases(Path(work) / "plain0"), applied)
        flips, voxels, apart = 0, 0, 0.0
        for path in sorted(hand.glob("*.npz")):
            folders = (Path(work) / "plain0", hand, Path(work) / "now0", applied)
            before, own, found, same = (np.load(place / path.name)["probabilities"] for place in folders)
            assert np.array_equal(found, same), f"{path.name} is not what segcal apply writes"
            flips, voxels = flips + int((before.argmax(0) != found.argmax(0)).sum()), voxels + before[0].size
            apart = max(apart, float(np.abs(own - found).max()))
    cost = min(taken["now"][1:]) / min(taken["plain"][1:])
    # By hand nnU-Net predicts first, with the lines of its own predictor.
    before = count_lines(nnunet_plain) + count_lines(nnunet_by_hand)
    return Line("nnU-Net v2", "nnunet", before, count_lines(nnunet_now), cost, flips, voxels, apart)


def all_lines(nnunet: list[Path] | None) -> list[Line]:
    import transformers
    from monai.inferers import SlidingWindowInferer

    cal = fitted()
    image, volume, photo = torch.randn(2, 1, 256, 240), torch.randn(1, 1, 64, 56, 48), torch.randn(1, 3, 256, 320)
    windows = SlidingWindowInferer((32, 32, 32), 2, overlap=0.25, mode="gaussian")
    torch.manual_seed(0)
    segformer = transformers.SegformerForSemanticSegmentation(transformers.SegformerConfig(num_labels=CLASSES)).eval()
    three = (torch_plain, torch_by_hand, torch_now)
    lines = [
        compared("plain torch", "onnx", *three, (network(), image), cal),
        onnx_line(cal),
        compared("Hugging Face", "transformers", hf_plain, hf_by_hand, hf_now, (segformer, photo), cal),
        compared("MONAI", "monai", monai_plain, monai_by_hand, monai_now, (windows, network(3), volume), cal),
        metric_line(cal),
    ]
    return [*lines, nnunet_line(*nnunet)] if nnunet else lines


def table(lines: list[Line], kept: list[str]) -> str:
    rows = [
        f"| [{one.stack}]({one.page}.md) | {one.before} | {one.now} | {one.time - 1:+.0%} | "
        f"{f'{one.flips} of {one.voxels:,} ' if one.voxels else ''}| {one.apart:.0e} |"
        for one in lines
    ]
    head = [
        "| stack | lines by hand | lines now | time | labels changed | probabilities apart |",
        "|---|---|---|---|---|---|",
    ]
    made = f"*{stamp(Section(('benchmarks.frameworks',)))}{'; nnU-Net: an earlier run' if kept else ''}*"
    return "\n".join([MARK, *head, *rows, *kept, "", made, "", MARK])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="put the table into docs/howto/README.md")
    parser.add_argument("--nnunet", nargs=3, type=Path, metavar=("MODEL", "IMAGES", "CALIBRATOR"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    page = PAGE.read_text("utf-8")
    kept = [] if args.nnunet else [line for line in page.splitlines() if line.startswith("| [nnU-Net v2]")]
    with torch.no_grad():
        made = table(all_lines(args.nnunet), kept)
    print(made)
    if args.write:
        PAGE.write_text(re.sub(f"{MARK}.*{MARK}", lambda _: made, page, flags=re.DOTALL), "utf-8")


if __name__ == "__main__":
    main()
