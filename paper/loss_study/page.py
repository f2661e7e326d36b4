"""The page of the study: Markdown with every table, every figure and what follows from them, all computed."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

from paper.loss_study import tables
from paper.loss_study.figures import write_figures
from paper.loss_study.plan import MAIN, SENSITIVITY, SIGMAS
from paper.loss_study.results import Results
from paper.loss_study.rows import read_lines
from paper.loss_study.verdict import STAGES, spread_table, unchanged, verdict
from segcal.atomic import write_text

# Title, text, and captions of figures by their names.
Section: TypeAlias = tuple[str, str, dict[str, str]]

PAGE = "losses.md"
IMAGES = "images"
# The study as a part of docs/losses.md: between two marks, and its pictures in a folder of their own.
BEGIN, END = "<!-- begin study -->", "<!-- end study -->"
DOCS_IMAGES = "images/losses"
SMALL_NOTE = "A small study, of two epochs on a few cases, to try everything out: its numbers mean nothing."
ABOUT = (
    "Small networks, trained on the embedded tasks with every loss of the neighbour-aware paper (Murugesan et al., "
    "*Neighbor-Aware Calibration of Segmentation Networks with Penalty-Based Constraints*), and measured as they are "
    "and with calibrators that are fitted to clean cases afterwards: `ts`, `cms_ap` and `lts_ti`. Written by `python "
    "-m paper.loss_study`."
)
MEASURES = (
    "ECE and CECE are those of the paper: 15 bins, on the true foreground (on streets, where class 0 is a class like "
    'the others, on every voxel); "ECE (all)" has 50 bins and is on every voxel. On the foreground of a task with two '
    "classes CECE is the mean of 1 - p of the true class, which overconfidence lowers: read it together with NLL."
)
QUESTION = (
    'Every sentence is computed from the results behind the tables. "Clearly" means that the 95 % interval of the '
    "paired difference does not contain zero; of 40 pairs without any difference, at least one is clearly lower by "
    'chance, and one clearly higher. A calibrator does "most of what a loss does" if it leaves at most half of the '
    "clear differences."
)


def write_page(sources: Sequence[Path], folder: Path, small: bool = False, missing: int = 0) -> Path:
    """Write the page and its figures, and return its path.

    Args:
        sources: lines of the study, each with its pictures beside it.
        folder: where to.
        small: the study is small; the page says that its numbers mean nothing.
        missing: networks that are still to come; the page says so.
    """
    results = Results(read_lines(sources)[0])
    drawn = write_figures(results, sources, folder / IMAGES)
    notes = [SMALL_NOTE] if small else []
    notes += [f"Not complete: of what was asked for, {missing} more are to come."] if missing else []
    parts = ["# Losses that calibrate while training", ABOUT, *notes, sections(results, drawn, IMAGES)]
    return write_text(folder / PAGE, "\n\n".join(parts))


def write_docs(sources: Sequence[Path], docs: Path) -> None:
    """Write the study into docs/losses.md again: what stands between the marks, and the pictures."""
    results = Results(read_lines(sources)[0])
    text = sections(results, write_figures(results, sources, docs / DOCS_IMAGES), DOCS_IMAGES)
    write_text(docs / PAGE, replaced((docs / PAGE).read_text(encoding="utf-8"), text))


def replaced(page: str, text: str) -> str:
    """Return the page with what stands between the marks replaced."""
    before, rest = page.split(BEGIN, 1)
    return f"{before}{BEGIN}\n\n{text.strip()}\n\n{END}{rest.split(END, 1)[1]}"


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
        "from a bootstrap over seeds and cases; a draw has the same cases for all seeds, which are tested on the same. "
        "With so few seeds intervals are still rather too narrow. Numbers without an interval are means, and a "
        "difference that rests on one seed is no evidence."
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
        MEASURES + "\n\n" + "\n".join(tables.main_table(results, task).to_markdown() for task in results.tasks),
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
        "Mask, confidence and reliability of one test case, with every loss. Reliability is on the true foreground, as "
        "ECE is (on streets on every voxel).",
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
            "HP1 to HP3 in the figure are the three settings of each loss in this order.\n\n"
            + tables.sensitivity_table(results).to_markdown(),
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
