"""``segcal check``: is this folder usable, and what is in it."""

from dataclasses import asdict
from typing import Any

import segcal
from segcal.cases import CheckResult
from segcal.cases.check import LISTED
from segcal.cases.decision import decision_of
from segcal.cli import arguments as shared
from segcal.cli.call import Call
from segcal.cli.commands import DONE, SOME_FAILED, USER_ERROR, Command, Role, argument, flag
from segcal.cli.console import in_options, table
from segcal.pooling import BEST

FACTS = ("cases", "format", "kind", "pooling", "members", "num_classes", "usable")


def _check(call: Call) -> int:
    args = call.args
    alone = args.no_labels or len(args.paths) == 1
    folders, labels = (args.paths, args.labels) if alone or args.labels else (args.paths[:-1], args.paths[-1])
    call.cases = call.open(folders, labels, BEST, matching=False)
    with call.engine(call.cases), call.bar("checking"):
        found = call.do(segcal.check, call.own)
    if call.part is not None:
        return call.end_of_part()
    call.say(*_lines(found))
    problems = [asdict(problem) | {"text": in_options(problem.text)} for problem in found.problems]
    more = {"classes": found.class_table(), "problems": problems, "rows": [asdict(row) for row in found.rows]}
    code = DONE if found.usable else SOME_FAILED if len(found.broken) < found.cases else USER_ERROR
    return call.end({name: getattr(found, name) for name in FACTS} | more, code)


def _lines(found: CheckResult) -> list[Any]:
    first, last = found.frame()
    lines: list[Any] = [first]
    if found.rows:
        classes = [
            [f"{line['class']} {line['name'] or ''}".strip(), _share(line["predicted"]), _share(line["labels"])]
            for line in found.class_table()
        ]
        lines.append(table([decision_of(found.regions).title, "predicted", "labelled"], classes))
    rows = [[problem.severity, _which(ids), in_options(problem.text)] for problem, ids in found.digest()]
    lines += [table(["", "which cases", "what was found"], rows, text=True)] if rows else []
    return [*lines, last]


def _share(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.3g} %"


def _which(ids: tuple[str, ...]) -> str:
    shown = "\n".join(ids[:LISTED]) or "the folder"
    return shown if len(ids) <= LISTED else f"{shown}\nand {len(ids) - LISTED} more"


CHECK = Command(
    _check,
    "segcal check PREDICTIONS... [LABELS] [options]",
    "Read every file once and report all problems in one table.\n"
    "Exit code 0: all cases are usable; 3: some are not; 2: none is.",
    "example:\n  segcal check predictions/ labels/ --kind logits --ignore 255",
    argument(
        "paths", "folders; of several, the last holds labels", Role.CASES, nargs="+", metavar="PREDICTIONS LABELS"
    ),
    shared.RATERS,
    flag("--no-labels", "all folders hold predictions"),
    shared.RESULTS,
    groups=shared.ON_CASES | shared.IN_PARTS,
)
