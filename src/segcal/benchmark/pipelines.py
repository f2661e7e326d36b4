r"""A pipeline is a pooling followed by a calibrator; the rows of the paper's Table 4 are the list of them.

Written `ts(mean_probs)`: temperature scaling of the mean of the members' probabilities. The paper's names are
:math:`p_0` for the first network alone, :math:`\bar p` for `mean_probs` and :math:`\bar z` for `mean_logits`.
"""

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import force_setattr

from segcal.benchmark.toml import Text
from segcal.calibrators import CALIBRATORS, Calibrator, make_calibrator
from segcal.errors import InputError
from segcal.pooling import check_pooling
from segcal.types import Preserves

SYMBOLS = {"single": "p_0", "mean_probs": r"\bar{p}", "mean_logits": r"\bar{z}"}

_P, _L = "mean_probs", "mean_logits"
# Pooling and calibrator, in the row groups of Table 4. Vector scaling is defined in the paper, but not in its table;
# conic scaling is ours.
ROW_GROUPS: dict[str, tuple[tuple[str, str], ...]] = {
    "(a) Uncalibrated baselines": (("single", "identity"), (_P, "identity"), (_L, "identity")),
    "(b) Translation invariance: MS vs. MS_c and DC": ((_L, "ms"), (_L, "dc"), (_L, "ms_c")),
    "(c) Translation invariance: LTS with logits vs. log-probabilities": ((_L, "lts"), (_L, "lts_ti")),
    "(d) Decision preservation: CDC vs. CMS": tuple(
        (how, name) for how in (_P, _L) for name in ("cdc", "cms_ap", "cms_op")
    ),
    "(e) Standard temperature-based calibrators (order-preserving, TI): TS, ETS": tuple(
        (how, name) for name in ("ts", "ets") for how in (_P, _L)
    ),
    "(f) Standard affine calibrator (not order-preserving, TI): DC": ((_P, "dc"), (_L, "dc")),
    "(g) Vector scaling, and its TI form": ((_L, "vs"), (_L, "vs_ti")),
    "(h) Curves that see their surroundings (TI): conic scaling": tuple(
        (how, name) for name in ("conic", "conic_class") for how in (_P, _L)
    ),
}
OTHER_ROWS = "(i) Others"


class Pipeline(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A pooling and a calibrator.

    Attributes:
        pooling: a name from :data:`segcal.POOLINGS`; "single" is the first member alone.
        calibrator: a name from :data:`segcal.CALIBRATORS`.
        options: the calibrator's own options.

    >>> Pipeline("mean_probs", "ts").title
    'ts(mean_probs)'
    """

    pooling: Text
    calibrator: Text
    options: dict[str, object] = {}

    def __post_init__(self) -> None:
        check_pooling(self.pooling)
        force_setattr(self, "options", dict(sorted(self.options.items())))
        self.make(2)  # a wrong name or option is refused here

    def __hash__(self) -> int:
        return hash((self.pooling, self.calibrator, *self.options))  # values may be lists

    @property
    def title(self) -> str:
        """How it is shown."""
        options = "".join(f", {key}={value}" for key, value in self.options.items())
        return f"{self.calibrator}({self.pooling}{options})"

    @property
    def latex(self) -> str:
        """How the paper writes it, for LaTeX."""
        symbol = SYMBOLS[self.pooling]
        if self.calibrator == "identity":
            return f"${symbol}$"
        head, _, tail = self.calibrator.partition("_")
        name = head.upper() + (rf"$_\mathrm{{{tail}}}$" if tail else "")
        options = "".join(rf", {key}={value}".replace("_", r"\_") for key, value in self.options.items())
        return f"{name}(${symbol}${options})"

    @property
    def translation_invariant(self) -> bool:
        """Whether the calibrator promises not to see the logits' offset."""
        return self.make(2).translation_invariant

    @property
    def preserves(self) -> Preserves:
        """What the calibrator promises to keep."""
        return self.make(2).preserves

    def make(self, num_classes: int) -> Calibrator:
        """Return a new calibrator, which is the identity until it is fitted."""
        return make_calibrator(self.calibrator, num_classes, **self.options)


def paper_pipelines() -> tuple[Pipeline, ...]:
    """Return the paper's pipelines, vector scaling and conic scaling.

    >>> [pipeline.title for pipeline in paper_pipelines()][:3]
    ['identity(single)', 'identity(mean_probs)', 'identity(mean_logits)']
    """
    return tuple(Pipeline(*pair) for pair in dict.fromkeys(pair for rows in ROW_GROUPS.values() for pair in rows))


def more_pipelines() -> tuple[Pipeline, ...]:
    """Return the calibrators that are not in the paper's table, on mean logits, beside none and temperature scaling.

    >>> [pipeline.title for pipeline in more_pipelines()][:2]
    ['identity(mean_logits)', 'ts(mean_logits)']
    """
    listed = {name for rows in ROW_GROUPS.values() for _, name in rows}
    others = [name for name in CALIBRATORS if name not in listed]
    return tuple(Pipeline("mean_logits", name) for name in ("identity", "ts", *others))


# What a protocol may write in the place of a list.
LISTS = {
    "paper": paper_pipelines,
    "more": more_pipelines,
    "all": lambda: tuple(dict.fromkeys((*paper_pipelines(), *more_pipelines()))),
}


def find_pipeline(name: str, pipelines: Sequence[Pipeline]) -> str:
    """Return the title of the pipeline that is named: by its title, or by its calibrator where that is enough."""
    found = [each.title for each in pipelines if each.title == name]
    found = found or [each.title for each in pipelines if each.calibrator == name]
    if len(found) != 1:
        known = ", ".join(each.title for each in pipelines)
        how_many = "no pipeline is" if not found else f"{len(found)} pipelines are"
        raise InputError(f"compare names {name!r}, but {how_many} called so. Choose from: {known}.")
    return found[0]


def in_row_groups(pipelines: Sequence[Pipeline]) -> dict[str, list[Pipeline]]:
    """Return the pipelines in the row groups of Table 4, some of them in two; all others follow as "Others"."""
    plain = {(each.pooling, each.calibrator): each for each in pipelines if not each.options}
    found = {title: [plain[pair] for pair in rows if pair in plain] for title, rows in ROW_GROUPS.items()}
    listed = {each for rows in found.values() for each in rows}
    found[OTHER_ROWS] = [each for each in pipelines if each not in listed]
    return {title: rows for title, rows in found.items() if rows}
