"""The page of the study: Markdown with every table, every figure and what follows from them, all computed."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

from segcal.demo.loss_study import tables
from segcal.demo.loss_study.figures import write_figures
from segcal.demo.loss_study.plan import MAIN, SENSITIVITY, SIGMAS
from segcal.demo.loss_study.results import Results
from segcal.demo.loss_study.rows import read_rows
from segcal.demo.loss_study.verdict import STAGES, spread_table, unchanged, verdict

# Title, text, and captions of figures by their names.
Section: TypeAlias = tuple[str, str, dict[str, str]]

PAGE = "losses.md"
IMAGES = "images"
SMALL_NOTE = "A small study, of two epochs on a few cases, to try everything out: its numbers mean nothing.\n\n"
QUESTION = (
    'Every sentence is computed from the tables below it; "clearly" means that the 95 % interval of the paired '
    "difference does not contain zero. Calibrators are fitted to clean cases only."
)


def write_page(archives: Sequence[Path], folder: Path, small: bool = False) -> Path:
    """Write the page and its figures, and return its path; of a small study it says that its numbers mean nothing."""
    results = Results(read_rows(archives))
    drawn = write_figures(results, archives, folder / IMAGES)
    path = folder / PAGE
    beside = path.with_name(f".{PAGE}.part")
    text = "# Losses that calibrate while training\n\n" + (SMALL_NOTE if small else "")
    beside.write_text(text + sections(results, drawn, IMAGES), encoding="utf-8")
    beside.replace(path)
    return path


def sections(results: Results, drawn: Sequence[str], images: str) -> str:
    """Return the sections of the page, with links to the figures that were drawn."""
    parts = [facts_text(results)]
    for title, text, figures in [*_main_sections(results), *_other_sections(results)]:
        parts += [f"### {title}", text]
        parts += [f"![{caption}]({images}/{name}.png)" for name, caption in figures.items() if name in drawn]
    return "\n\n".join(part.strip() for part in parts if part.strip()) + "\n"


def facts_text(results: Results) -> str:
    """Return what was trained, and which calibrations changed nothing."""
    counts = sorted({len(seeds) for seeds in results.rows.values()})
    seeds = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    total = sum(len(own) for own in results.rows.values())
    text = (
        f"{total} networks were trained, {seeds} of each kind, which differ by their seed. Intervals are 95 % and come "
        "from a bootstrap over seeds and cases; numbers without an interval are means, and a difference that rests on "
        "one seed is no evidence."
    )
    for pipeline in tables.PIPELINES[1:]:
        same, fitted = unchanged(results, pipeline)
        if same:
            text += f" {pipeline} left {same} of {fitted} networks as they were: validation cases got no better."
    return text


def _main_sections(results: Results) -> Iterator[Section]:
    """Yield what rests on the networks of the main table."""
    yield (
        "Segmentation and calibration (the paper's Tables 1 and 2, Fig. 1)",
        "\n".join(tables.main_table(results, task).to_markdown() for task in results.tasks),
        {"radar": "Dice and ECE of every loss"},
    )
    if all(tables.Key(task, variant) in results.rows for task in results.tasks for variant in MAIN):
        yield "Ranks (Fig. 2)", tables.rank_table(results).to_markdown(), {}
    question = [QUESTION]
    for metric in ("nll", "ece"):
        question += [verdict(results, metric), spread_table(results, metric).to_markdown()]
    yield (
        "Does train-time calibration still help after calibration?",
        "\n\n".join(question),
        {"post_hoc": "NLL of every loss without and with calibration"},
    )
    for stage, words in STAGES.items():
        made = [
            table(results, task, stage, metric).to_markdown()
            for metric in ("nll", "ece")
            for task in results.tasks
            for table in (tables.post_hoc_table, tables.gain_table)
        ]
        yield f"{words}: every loss with every calibrator", "\n".join(made), {}
    yield (
        "Union of true and predicted foreground (Fig. 10)",
        tables.union_table(results).to_markdown(),
        {"union": "Dice against ECE on the union"},
    )
    yield (
        "Logits (Fig. 4 and 5)",
        "The mean absolute logit of each class (columns) where each class is true (rows), and the largest logit in the "
        "course of training, of one network each.",
        {"logit_profiles": "Logits of each class", "logit_growth": "The largest logit over epochs"},
    )
    yield (
        "One case (Fig. 11)",
        "Mask, confidence and reliability of one test case, with every loss.",
        {f"case_{task}": f"One case of {task}" for task in results.tasks},
    )


def _other_sections(results: Results) -> Iterator[Section]:
    """Yield what rests on networks beyond the main table, where there are any."""
    kinds = set(results.rows)
    variants = {key.variant for key in kinds if key[2:] == ("unet", 100)}
    if variants & set(tables.ABLATION) - set(MAIN):
        yield (
            "Prior, penalty, logits or softmax (Tables 3 and 4, Fig. 3)",
            tables.ablation_table(results).to_markdown() + "\n" + tables.ablation_gain_table(results).to_markdown(),
            {},
        )
    if variants & {variant for pair in SIGMAS.values() for variant in pair} - set(MAIN):
        yield "NACL against SVLS with the same Gaussian (Fig. 7)", tables.sigma_table(results).to_markdown(), {}
    if variants & {variant for three in SENSITIVITY.values() for variant in three} - set(MAIN):
        yield (
            "Hyper-parameters (Fig. 6)",
            tables.sensitivity_table(results).to_markdown(),
            {"sensitivity": "Dice and ECE at three settings"},
        )
    if any(key.backbone != "unet" for key in kinds):
        yield "Backbones (Fig. 8)", tables.backbone_table(results).to_markdown(), {}
    if any(key.share != 100 for key in kinds):
        yield (
            "Less training data (Fig. 9)",
            "\n".join(tables.share_table(results, metric).to_markdown() for metric in ("dice", "ece_foreground")),
            {"shares": "Dice and ECE with less training data"},
        )
