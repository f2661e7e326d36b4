"""The configuration of a fit: every choice in one object, all of it data."""

from dataclasses import asdict, dataclass
from typing import Any, Literal, Self

from segcal.arguments import check_fields
from segcal.errors import InputError

# Strengths tried on held-out cases, strongest first: from temperature scaling to the weak end of the paper's search.
# Without any penalty, a few cases decide all of it: a user who wants that sets zero strengths.
STRENGTHS = (1e5, 1e3, 1e2, 1e1, 1.0, 1e-1, 1e-2, 1e-4, 1e-6)
# The same for a region, of which all are tried: below the last, a curve follows single cases, and fails on others.
REGION_STRENGTHS = (1e5, 1.0, 1e-1, 1e-2, 1e-3, 1e-4)
# Where nothing can be held out (a single group): close to temperature scaling, since nothing speaks for more.
DEFAULT_STRENGTH = 1e2


@dataclass(frozen=True)
class FitConfig:
    """Options of :func:`segcal.fit`.

    Attributes:
        lam: strength of the penalty on off-diagonal weights (Eq. 15); None: chosen on held-out cases.
        mu: strength of the penalty on biases; None: chosen on held-out cases.
        nu: strength that draws diagonal weights to temperature scaling; None: as `lam` where that is chosen, else 0.
        evidence: what belongs to single classes is penalised more the fewer groups have them, and of fewer groups than
            this it stays as in temperature scaling; 0: neither. It needs a penalty that draws there, with nu above 0.
        outliers: whether groups that failed count less for a temperature (:mod:`segcal.fitting.outliers`). In the
            paper's method they never do.
        folds: into how many folds cases are divided to hold each out once, where there are no validation cases.
        voxels: how many voxels are drawn from each case, or "all" to stream every voxel on every pass.
        seed: of every random choice.
        tol: the residual at which an exact fit stops.
        memory: bytes that drawn voxels may take; with more cases fewer voxels are drawn from each.
        verify: after a sampled fit, also compute the residual on all voxels.
        method: "exact" (to the certified optimum where the problem is convex) or "paper" (Adam and a search).
        trials: of the search, in the paper's method.
        learning_rate: of training by gradient; None: searched in the paper's method, a default otherwise.
        patience: evaluations without improvement before training stops; None: as for the learning rate.
        max_steps: at most so many steps of Adam a trial.
        weight_decay: for calibrators with convolutions or networks; None: as for the learning rate.
        checkpoint: a folder in which training by gradient keeps its state after every round, and from which the same
            call goes on; None: nowhere. Where it lies decides no number, so it is not written to artefacts.
        journal: a file by which processes with the same call share the trials of the paper's method, and all take the
            best; None: this one does them all. What is proposed then depends on what the others have found so far.
    """

    lam: float | None = None
    mu: float | None = None
    nu: float | None = None
    evidence: int = 3
    outliers: bool = True
    folds: int = 5
    voxels: int | Literal["all"] = 20_000
    seed: int = 0
    tol: float = 1e-6
    memory: int = 128 << 20
    verify: bool = False
    method: Literal["exact", "paper"] = "exact"
    trials: int = 20
    learning_rate: float | None = None
    patience: int | None = None
    max_steps: int = 1000
    weight_decay: float | None = None
    checkpoint: str | None = None
    journal: str | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("lam", "mu", "nu", "weight_decay", "learning_rate"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise InputError(
                    f"{name} is {value!r}, but a number of at least 0 is needed. Use None to have it chosen."
                )

    @classmethod
    def paper(cls, **options: Any) -> Self:
        """Return the paper's own procedure (App. B): Adam, plateau schedule, early stopping, 20 trials."""
        return cls(method="paper", **options)

    def to_dict(self) -> dict[str, object]:
        """Return plain data: what decides the result."""
        return {name: value for name, value in asdict(self).items() if name not in ("checkpoint", "journal")}


def check_config(config: object) -> FitConfig:
    """Return the settings of a fit, the usual ones for None."""
    if config is not None and not isinstance(config, FitConfig):
        raise InputError(
            f"config is {type(config).__name__}, but a FitConfig is needed. Write segcal.FitConfig(voxels=...)."
        )
    return FitConfig() if config is None else config
