"""Make the tables of the pages of results from the rows of the board: ``python -m paper.summaries``, in a second.

A table stands in a page after ``<!-- board: NAME -->`` and reaches to the next empty line. Numbers are those of the
board, as printed; what is named the lowest is computed.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from decimal import Decimal
from pathlib import Path

from paper.board import Row, read_rows
from segcal.atomic import write_text

DOCS = Path(__file__).parents[1] / "docs"
MARK = re.compile(r"(<!-- board: (\w+) -->\n)(?:\|.*\n)*")
TASKS = ("roads", "cardiac", "camvid")
METRICS = ("NLL", "ECE", "BA-ECE", "ACE")
RECENT_METRICS = ("NLL", "ECE", "BA-ECE")
RECENT = ("nothing", "ts", "default", "smart", "sms (probmetrics)", "quadratic (probmetrics)", "h-calibration")
Found = dict[tuple[str, str, str], Row]


def rows_of(study: str) -> Found:
    """Return the rows of a study by task, method and metric."""
    return {(row.task, row.method, row.metric): row for row in read_rows(study)}


def table(head: Sequence[str], lines: Iterable[Sequence[object]]) -> str:
    """Return a table in Markdown; columns whose first cell is a number stand at the right."""
    cells = [[str(cell) for cell in line] for line in lines]
    sides = ["---:|" if re.match(r"\**[-+]?\d", cell) else "---|" for cell in cells[0]]
    texts = [f"| {' | '.join(line)} |" for line in (head, *cells)]
    return "\n".join([texts[0], "|" + "".join(sides), *texts[1:]]) + "\n"


def shown(row: Row | None) -> str:
    """Return a number with its interval; a dash where there is none."""
    if row is None or row.value is None:
        return "—"
    return f"{row.value}" if row.low is None else f"{row.value} [{row.low}, {row.high}]"


def value(found: Found, *key: str) -> str:
    """Return a number without its interval."""
    row = found.get((key[0], key[1], key[2]))
    return "—" if row is None or row.value is None else str(row.value)


def lowest(found: Found, task: str, metric: str) -> str:
    """Return the pipelines with the lowest number of a column, by four digits where those were printed."""
    for title in (f"{metric}, four digits", metric):
        own = {row.method: row.value for row in found.values() if (row.task, row.metric) == (task, title)}
        values = {method: number for method, number in own.items() if number is not None}
        if values:
            best = min(values.values())
            return f"{', '.join(f'`{method}`' for method, number in values.items() if number == best)} {best}"
    return "—"


def winners() -> str:
    found = rows_of("table4")
    columns = ("identity", "ts", "cms_ap", "conic")
    lines = [
        [
            task,
            metric,
            *(value(found, task, f"{name}(mean_probs)", metric) for name in columns),
            lowest(found, task, metric),
        ]
        for task in TASKS
        for metric in METRICS
    ]
    return table(("task", "metric", "none", "`ts`", "`cms_ap`", "`conic`", "lowest of 25 pipelines"), lines)


def properties() -> str:
    found, words = rows_of("agreement"), ("better", "worse", "compared")
    lines = []
    for method in ("translation invariance", "keeping the decision", "conic scaling"):
        counts = [[value(found, task, method, f"calibration metrics {word}") for word in words] for task in TASKS]
        lines.append([method, *(f"{better}/{worse} of {compared}" for better, worse, compared in counts)])
    return table(("better/worse", *TASKS), lines)


def default() -> str:
    found = rows_of("default")
    lines = []
    for task in dict.fromkeys(key[0] for key in found if key[0] != "all tasks"):
        for size in ("10", "25", "50"):
            methods = ("nothing", "ts(mean_probs)", "ts(mean_logits)", "default")
            if (task, "default", f"NLL, {size} cases") in found and (size != "25" or "video" in task):
                worse = [
                    value(found, task, "default", f"divisions worse than {w}, {size} cases") for w in ("ts", "nothing")
                ]
                numbers = [value(found, task, method, f"NLL, {size} cases") for method in methods]
                of = value(found, task, "default", f"divisions, {size} cases")
                words = task.split(",")[0] + (", by video" if "video" in task else "")
                lines.append([words, size, *numbers, f"{'/'.join(worse)} of {of}"])
    head = ("task", "cases", "nothing", "`ts` (probs)", "`ts` (logits)", "default", "worse than `ts`/nothing")
    return table(head, lines)


def elsewhere() -> str:
    found = rows_of("elsewhere")
    lines = []
    for task in dict.fromkeys(key[0] for key in found):
        names = ("default", "ts, divisions of default", "nothing, divisions of default")
        cells = [value(found, task, "default", "divisions"), *(value(found, task, name, "NLL") for name in names)]
        for other in ("ts", "nothing"):
            metrics = ("NLL", "ECE", "BA-ECE")
            cells.append(
                "/".join(value(found, task, "default", f"divisions worse than {other} in {m}") for m in metrics)
            )
        lines.append([task, *cells, value(found, task, "default", "worst 5 %, all cases, against ts, nats")])
    head = ("sites", "splits", "default", "`ts`", "nothing", "worse than `ts`", "than nothing")
    return table((*head, "worst cases"), lines)


def _regions() -> Iterator[tuple[str, str, Found]]:
    found = rows_of("regions")
    for where in dict.fromkeys(key[0] for key in found):
        if ": " in where:
            data, region = where.split(": ")
            yield data, region, {key: row for key, row in found.items() if key[0] == where}


def _mover(own: Found) -> Row:
    """Return the difference of `conic_class` to the better of the two that may move masks."""
    by = {key[1]: row for key, row in own.items() if key[2] == "NLL"}
    return max((by[f"conic_class against {peer}"] for peer in ("platt", "isotonic")), key=lambda row: row.value or 0)


REGION_COLUMNS = ("none", "ts", "conic", "conic_class", "platt", "isotonic")


def regions() -> str:
    counts: dict[str, Counter[str]] = {}
    for data, _, own in _regions():
        by = {
            key[1]: row.value or Decimal(0) for key, row in own.items() if key[2] == "NLL" and key[1] in REGION_COLUMNS
        }
        gap = _mover(own)
        clear = (
            "unclear"
            if gap.low is None or gap.high is None or gap.low <= 0 <= gap.high
            else "better"
            if gap.high < 0
            else "worse"
        )
        counts.setdefault(data, Counter()).update(["regions", min(by, key=lambda name: by[name]), clear])
    lines = [
        (
            data,
            own["regions"],
            ", ".join(f"`{name}` {own[name]}" for name in REGION_COLUMNS if own[name]),
            f"{own['better']}/{own['worse']}",
        )
        for data, own in counts.items()
    ]
    return table(("data", "regions", "lowest NLL", "`conic_class` better/worse than both"), lines)


DATA = {
    "streets, places": "streets, seen",
    "streets, a place": "streets, new site",
    "streets, unions": "streets, unions",
}


def all_regions() -> str:
    lines = []
    for data, region, own in _regions():
        where = f"{data}: {region}"
        cells = []
        for name in REGION_COLUMNS:
            moved = own[where, name, "mask changed, %"].value
            cells.append(value(own, where, name, "NLL") + (f" ({moved:.2g})" if moved else ""))
        short = next((words for start, words in DATA.items() if data.startswith(start)), data.split(",")[0])
        lines.append([f"{short}: {region}", *cells, _mover(own).value])
    return table(("region", *REGION_COLUMNS, "difference"), lines)


def losses(chosen: Sequence[str] = ("ce", "ce_dice"), metrics: Sequence[str] = ("BA-ECE",)) -> str:
    found = rows_of("losses_real")
    tables = [key[0] for key in found if key[1] == "ce_dice" and key[2] == "Dice"]
    lines = [
        [title.replace(" networks", ""), f"`{loss}`", value(found, title, loss, "Dice")]
        + [
            f"{value(found, title, loss, f'{m} as trained')} → {value(found, title, loss, f'{m} conic')}"
            for m in metrics
        ]
        for title in tables
        for loss in chosen
    ]
    return table(("networks", "loss", "Dice", *(f"{m} as trained → `conic`" for m in metrics)), lines)


DICE_LOSSES = ("ce_dice", "focal_dice", "nacl_dice", "label_smoothing_dice")


def few() -> str:
    found, metrics = rows_of("conic_few"), ("NLL", "ECE", "BA-ECE")
    pairs = [key for key in found if key[1:] == ("conic against ts", "NLL")]
    lines = [[key[0], *(shown(found.get((key[0], key[1], metric))) for metric in metrics)] for key in pairs]
    return table(("`conic` against `ts`", *metrics), lines)


def speed_metrics() -> str:
    found = rows_of("metrics")
    tasks = ("20 x 1024 x 2048 float32", "5 x 155 x 240 x 240 float32")
    columns = [(task, metric) for task in tasks for metric in ("ms", "its ECE, x")]
    names = [key[1] for key in found if key[0] == tasks[0] and key[2] == "ms"]
    head = (f"{task.removesuffix(' float32')}, {metric.removeprefix('its ')}" for task, metric in columns)
    return table(("library", *head), [[name, *(value(found, c[0], name, c[1]) for c in columns)] for name in names])


def speed_fits() -> str:
    found = rows_of("fitting")
    task, peers = next(iter(found))[0], ("paper's procedure", "fiducio lbfgs", "fiducio adam")
    lines = []
    for name in ("ts", "dc", "cdc", "cms_ap", "cms_op"):
        cells = []
        for peer in peers:
            times, gap = (value(found, task, f"{name}: {peer}", metric) for metric in ("times slower", "above"))
            cells.append(times if gap == "—" else f"{times} ({float(gap):.0e})")
        lines.append([f"`{name}`", value(found, task, f"{name}: segcal", "seconds"), *cells])
    return table(("street scenes", "segcal, s", *(f"{peer}, times slower" for peer in peers)), lines)


def speed_gpu() -> str:
    found, cpu = rows_of("gpu"), rows_of("apply")
    names = [key[1] for key in found if key[0] == "applying" and key[2] == "goal, copies"]
    metrics = ("on the device, copies", "whole call, copies", "goal, copies")
    lines = [
        [f"`{name}`", *(value(found, "applying", name, m) for m in metrics), value(cpu, "", name, "softmaxes")]
        for name in names
    ]
    return table(("copies", "on the device", "whole call", "goal", "two CPU cores, softmaxes"), lines)


def recent() -> str:
    """Return the means of the recent methods, and the lowest of each row in bold."""
    found, lines = rows_of("peers_recent"), []
    for task in dict.fromkeys(key[0] for key in found):
        for metric in RECENT_METRICS:
            cells = [value(found, task, method, metric) for method in RECENT]
            least = min((cell for cell in cells if cell != "—"), key=Decimal)
            lines.append([task, metric, *(f"**{cell}**" if cell == least else cell for cell in cells)])
    heads = (f"`{method.partition(' (')[0]}`" for method in RECENT)
    return table(("task", "metric", *heads), lines)


def published() -> str:
    found = rows_of("published")
    columns = ("ACE", "ECE", "MCE", "DSC", "ACE if calibrated")
    methods = dict.fromkeys((task, method) for task, method, _ in found if task in ("ours", "published"))
    lines = [[*key, *(value(found, *key, column) for column in columns)] for key in methods]
    return table(("whose", "method", *columns), lines)


def counters() -> str:
    found = rows_of("counters")
    names = list(dict.fromkeys(method for _, method, _ in found))
    places = [place for place in dict.fromkeys(task for task, _, _ in found) if not place.startswith("first")]
    lines = [[place, *(value(found, place, name, "error, %") for name in names)] for place in places]
    first = [row for row in read_rows("counters") if row.task.startswith("first")]
    lines.append(["off by 1 % from, voxels", *(f"{row.value:,}" if row.value else "—" for row in first)])
    return table(("error of the ECE, %", *names), lines)


TABLES: dict[str, Callable[[], str]] = {
    "winners": winners,
    "properties": properties,
    "default": default,
    "elsewhere": elsewhere,
    "regions": regions,
    "all_regions": all_regions,
    "losses": losses,
    "dice_losses": lambda: losses(DICE_LOSSES, METRICS[:3]),
    "few": few,
    "speed_metrics": speed_metrics,
    "speed_fits": speed_fits,
    "speed_gpu": speed_gpu,
    "recent": recent,
    "published": published,
    "counters": counters,
}


def renewed(page: str) -> str:
    """Return a page with its tables made anew."""
    return MARK.sub(lambda found: found[1] + TABLES[found[2]](), page)


if __name__ == "__main__":
    for path in sorted(DOCS.glob("*.md")):
        before = path.read_text("utf-8")
        if (after := renewed(before)) != before:
            write_text(path, after)
