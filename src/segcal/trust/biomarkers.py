r"""Numbers that follow from volumes, in one case or in linked ones, such as the ejection fraction of two phases.

A biomarker is an expression of volumes: ``100 * ({left ventricle@1} - {left ventricle@2}) / {left ventricle@1}``. In
braces stands a structure, and after ``@`` the phase; outside them numbers, ``+ - * /`` and brackets. Cases are linked
by a regular expression with two groups, the subject and the phase: ``(patient\d+)_frame0?(\d)``. Without phases each
case is a subject of its own.

The number of a subject is that of its expected volumes. How far it was off on labelled subjects gives the interval by
the same rule as for volumes (:mod:`segcal.trust.estimates`). Its scale is the one that the scales of the volumes give
by linear propagation: :math:`s^2 = \sum_j (\partial f / \partial V_j)^2 s_j^2`.
"""

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from segcal.errors import InputError
from segcal.fitting.reference import ITSELF
from segcal.trust.conformal import draws_needed
from segcal.trust.estimates import Errors, SumTable, volume_scale
from segcal.trust.result import BiomarkerRow

Formula = Callable[[Sequence[float]], float]
OPERATIONS: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
# A number that depends on no volume has no scale of its own.
SMALLEST = 1e-12
_BRACES = re.compile(r"\{([^{}@]+)(?:@([^{}@]+))?\}")


class Term(NamedTuple):
    """A volume in an expression: of a class, in a phase ("" if there are none)."""

    number: int
    phase: str


@dataclass(frozen=True)
class Biomarker:
    """An expression of volumes: its name, the volumes it needs, and what is computed of these in their order."""

    name: str
    terms: tuple[Term, ...]
    formula: Formula

    def value(self, volumes: Sequence[float]) -> float:
        """Return the number of so many volumes; NaN where it is not defined."""
        try:
            return self.formula(volumes)
        except (ZeroDivisionError, OverflowError):
            return math.nan

    def scale(self, volumes: Sequence[float], scales: Sequence[float]) -> float:
        """Return what the scales of the volumes make of its own, by small changes of each."""
        total = 0.0
        for number, own in enumerate(scales):
            step = 1e-4 * own
            ends = [[*volumes[:number], volumes[number] + sign * step, *volumes[number + 1 :]] for sign in (1, -1)]
            total += ((self.value(ends[0]) - self.value(ends[1])) / (2e-4)) ** 2
        return max(math.sqrt(total), SMALLEST)


def parse_biomarker(name: str, text: str, titles: Sequence[str]) -> Biomarker:
    """Return the biomarker of an expression; `titles` are the names of the classes.

    >>> ratio = parse_biomarker("ratio", "{b} / ({a} + {b})", ["a", "b"])
    >>> ratio.value([3.0, 1.0]), ratio.terms
    (0.75, (Term(number=1, phase=''), Term(number=0, phase='')))
    """
    terms: dict[Term, str] = {}

    def replaced(found: re.Match[str]) -> str:
        title, phase = found[1].strip(), (found[2] or "").strip()
        if title not in titles:
            raise InputError(
                f"biomarker {name!r} names the structure {title!r}, but there are {', '.join(titles)}. Use one of them."
            )
        return terms.setdefault(Term(list(titles).index(title), phase), f"v{len(terms)}")

    try:
        formula = _formula(ast.parse(_BRACES.sub(replaced, text).strip(), mode="eval").body)
    except InputError:
        raise
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise _refusal(name, text) from None
    if not terms or len({bool(term.phase) for term in terms}) > 1:
        raise _refusal(name, text)
    return Biomarker(name, tuple(terms), formula)


def _refusal(name: str, text: str) -> InputError:
    return InputError(
        f"biomarker {name!r} is {text!r}, but an expression of volumes with + - * / is needed, all with a phase or "
        "none. Write it as '({left ventricle@1} - {left ventricle@2}) / {left ventricle@1}'."
    )


def _formula(node: ast.expr) -> Formula:
    """Return the function of volumes of an expression in which these are ``v0``, ``v1``, ..."""
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATIONS:
        apply, left, right = OPERATIONS[type(node.op)], _formula(node.left), _formula(node.right)
        return lambda volumes: apply(left(volumes), right(volumes))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = _formula(node.operand)
        return lambda volumes: -inner(volumes)
    if isinstance(node, ast.Name) and re.fullmatch(r"v\d+", node.id):
        place = int(node.id[1:])
        return lambda volumes: float(volumes[place])
    value = node.value if isinstance(node, ast.Constant) else None
    if isinstance(value, int | float) and not isinstance(value, bool):
        return lambda volumes: float(value)
    raise ValueError(ast.dump(node))


def link_cases(ids: Sequence[str], link: str | None) -> dict[str, dict[str, int]]:
    r"""Return the index of each case by subject and phase; without a link each case is a subject of phase "".

    >>> link_cases(["p1_ed", "p1_es"], r"(p\d+)_(\w+)")
    {'p1': {'ed': 0, 'es': 1}}
    """
    if link is None:
        return {case_id: {"": place} for place, case_id in enumerate(ids)}
    try:
        pattern = re.compile(link)
    except re.error as error:
        raise InputError(f"link is {link!r}, which is no regular expression ({error}), but one is needed.") from None
    if pattern.groups != 2:
        raise InputError(
            f"link is {link!r} with {pattern.groups} groups, but two are needed: the subject and the phase. "
            r"Write it as '(patient\d+)_frame(\d+)'."
        )
    subjects: dict[str, dict[str, int]] = {}
    for place, case_id in enumerate(ids):
        found = pattern.search(case_id)
        if found is not None:
            phases = subjects.setdefault(found[1], {})
            if phases.setdefault(found[2], place) != place:
                raise InputError(
                    f"link finds phase {found[2]!r} of {found[1]!r} in {ids[phases[found[2]]]!r} and {case_id!r}, but "
                    "a phase is one case. Make the expression more exact."
                )
    if not subjects:
        raise InputError(f"link is {link!r}, but no case (such as {ids[0]!r}) matches it. Correct the expression.")
    return subjects


def derive(
    biomarkers: Sequence[Biomarker],
    link: str | None,
    reference: SumTable,
    new: Sequence[SumTable],
    level: float,
    folds: Sequence[int] = (),
) -> list[BiomarkerRow]:
    """Return every biomarker of every subject among new cases, with intervals from the labelled ones.

    `new` are the new cases by each calibrator that judged labelled ones, and by the calibrator itself last. `folds`
    says which judged which, as :class:`segcal.trust.estimates.Errors` has it.
    """
    if len(set(reference.ids)) < len(reference.ids):
        several = "the labelled cases have several raters, but a biomarker is learned from one labelling."
        raise InputError(f"{several} Learn trust again with the labels of one rater.")
    subjects = link_cases(new[ITSELF].ids, link)
    labelled = link_cases(reference.ids, link)
    found = []
    for biomarker in biomarkers:
        if (link is None) == any(term.phase for term in biomarker.terms):
            told, needed = ("a phase", "a link") if link is None else ("no phase", "one, with a link,")
            raise InputError(
                f"biomarker {biomarker.name!r} names {told}, but {needed} is needed to tell cases of one subject "
                r"apart. Pass link='(patient\d+)_frame(\d+)', and phases as in {left ventricle@1}."
            )
        errors = biomarker_errors(biomarker, labelled, reference, folds)
        if not errors.supports(level):
            raise InputError(
                f"biomarker {biomarker.name!r} has {errors.draws} labelled subjects with all its phases, but level "
                f"{level:g} needs {draws_needed(level)}. Use a lower level, or learn from more cases."
            )
        found += [_derived(biomarker, subject, phases, new, errors, level) for subject, phases in subjects.items()]
    return found


def biomarker_errors(
    biomarker: Biomarker, subjects: Mapping[str, Mapping[str, int]], table: SumTable, folds: Sequence[int] = ()
) -> Errors:
    """Return how far a biomarker was off in labelled subjects.

    A subject whose phases are in two folds (they were no group) is compared with the calibrator itself.
    """
    signed, groups, judges = [], [], []
    for phases in subjects.values():
        if any(term.phase not in phases for term in biomarker.terms):
            continue
        values = volumes_of(biomarker, phases, table)
        truth = biomarker.value(values.truths)
        off = (truth - biomarker.value(values.volumes)) / biomarker.scale(values.volumes, values.scales)
        if math.isfinite(off):
            signed.append(off)
            groups.append(table.groups[next(iter(phases.values()))])
            own = {folds[place] for place in phases.values()} if folds else {ITSELF}
            judges.append(own.pop() if len(own) == 1 else ITSELF)
    return Errors(np.array(signed), tuple(groups), tuple(judges))


class TermValues(NamedTuple):
    """The values of each term of a biomarker in one subject: expected, its scale, in the mask, in truth."""

    volumes: list[float]
    scales: list[float]
    masks: list[float]
    truths: list[float]


def volumes_of(biomarker: Biomarker, phases: Mapping[str, int], table: SumTable) -> TermValues:
    """Return the volumes that a biomarker needs."""
    columns = (table.prob, volume_scale(table), table.mask, table.truth)
    places = [(phases[term.phase], term.number) for term in biomarker.terms]
    return TermValues(*([float(column[at] * table.size[at[0]]) for at in places] for column in columns))


def _derived(
    biomarker: Biomarker,
    subject: str,
    phases: Mapping[str, int],
    tables: Sequence[SumTable],
    errors: Errors,
    level: float,
) -> BiomarkerRow:
    row = BiomarkerRow(
        subject=subject, biomarker=biomarker.name, value=None, low=None, high=None, mask_value=None, reason=""
    )
    lacking = [term.phase for term in biomarker.terms if term.phase not in phases]
    if lacking:
        return row | {"reason": f"phase {lacking[0]} is missing"}
    every = [volumes_of(biomarker, phases, table) for table in tables]
    values = [biomarker.value(each.volumes) for each in every]
    scales = [biomarker.scale(each.volumes, each.scales) for each in every]
    if not np.isfinite([values, scales]).all():
        return row | {"reason": "it divides by a volume of zero"}
    value, low, high = errors.span(values, scales, level, -math.inf)
    hard = biomarker.value(every[ITSELF].masks)
    return row | {"value": value, "low": low, "high": high, "mask_value": hard if math.isfinite(hard) else None}
