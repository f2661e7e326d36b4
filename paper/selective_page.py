"""The section of the page on the analyses of the selective-scaling paper; its sentences are made from the numbers."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from segcal.summary import read_summary

FOLDER = "selective"
PLAIN = "identity(mean_logits)"
INTRO = """## Where the error lies, and what moves it

The analyses of *On Calibrating Semantic Segmentation Models: Analyses and An Algorithm* (selective scaling) on the same
ensembles, with mean logits. These runs are smaller than those of Table 4 and divide the cases on their own, so rows do
not compare with it.
"""
STUDIES = {
    "regions": "selective_figure5_regions.md",
    "detection": "selective_figure4_detection.md",
    "ensemble_size": "ensemble_size.md",
    "crop_size": "crop_size.md",
    "test_scales": "test_scales.md",
}


def selective(folder: Path) -> Iterator[str]:
    """Yield the section, if there are results for it."""
    place = folder / FOLDER
    if not (place / "summary.json").is_file():
        return
    yield INTRO
    for task in read_summary(place).tasks:
        cal, val, test = (getattr(task, part)[0] for part in ("cal", "val", "test"))
        yield f"- {task.name}: {cal} cases for calibration, {val} for validation, {test} for the test."
    yield ""
    for name, table in STUDIES.items():
        path = place / "studies" / f"{name}.json"
        if path.is_file():
            yield (place / "tables" / table).read_text("utf-8")
            tasks = json.loads(path.read_text("utf-8"))["tasks"]
            yield "\n".join(f"- {task}: {WORDS[name](found)}." for task, found in tasks.items()) + "\n"


def region_words(found: Mapping[str, Any]) -> str:
    """Say how much larger the error of wrong and of boundary voxels is, and who lowers that of wrong ones most."""
    mean = {title: {region: one["mean"] for region, one in facts["ece"].items()} for title, facts in found.items()}
    plain = mean[PLAIN]
    least = min(mean, key=lambda title: mean[title]["wrong"])
    return (
        f"before calibration ECE is {plain['wrong']:.3f} where the prediction is wrong and {plain['right']:.3f} where "
        f"it is right, {plain['boundary']:.3f} at the boundary and {plain['interior']:.3f} inside; lowest where wrong: "
        f"{least} ({mean[least]['wrong']:.3f}, and {mean[least]['right']:.3f} where right)"
    )


def detection_words(found: Mapping[str, Any]) -> str:
    """Say what an oracle that finds half or all of the mispredictions gives, and what was learned."""
    texts = []
    for title, errors in found["oracle"].items():
        least = min(range(len(errors)), key=lambda step: errors[step])
        share = 100 * least / (len(errors) - 1)
        texts.append(
            f"{title} {errors[0]:.3f} with none found, least {errors[least]:.3f} with {share:.0f} %, {errors[-1]:.3f} "
            "with all"
        )
    for title, own in found["learned"].items():
        precision = "no" if own["precision"] is None else f"{own['precision']:.2f}"
        recall = "no" if own["recall"] is None else f"{own['recall']:.2f}"
        texts.append(f"{title} learned recall {recall} and precision {precision}, and has {own['ece']:.3f}")
    return f"ECE of {'; '.join(texts)}"


def factor_words(found: Mapping[str, Any]) -> str:
    """Say how ECE and mIoU go from one end of the axis to the other."""
    first, *_, last = found
    low, high = found[first], found[last]
    cases = low["ece"]["cases"]
    return (
        f"from `{first}` to `{last}`, ECE {low['ece']['value']:.3f} → {high['ece']['value']:.3f}, mIoU in % "
        f"{100 * low['miou']['value']:.1f} → {100 * high['miou']['value']:.1f} ({cases} cases)"
    )


WORDS = {
    "regions": region_words,
    "detection": detection_words,
    "ensemble_size": factor_words,
    "crop_size": factor_words,
    "test_scales": factor_words,
}
