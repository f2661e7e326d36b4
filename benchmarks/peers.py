"""Peers that a user would pick instead, by calibrator: each entry is fitted on voxels and returns a map of logits.

The map takes logits ``(n, C)`` and returns unnormalised log-probabilities, from which the benchmark computes all NLLs
itself. Data are brought into the form that a library asks for before the clock starts.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from benchmarks.voxels import Voxels

Map = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Peer:
    """One library, used in one way.

    Attributes:
        name: what the table says.
        prepare: takes the voxels and returns the fit, which takes no arguments and returns the map.
        other_model: it is not the same map, so only validation NLLs compare: structured scaling tempers and mixes the
            probabilities before it takes their logarithms, and adds a penalty.
    """

    name: str
    prepare: Callable[[Voxels], Callable[[], Map]]
    other_model: bool = False


FIDUCIO = {"ts": "TS", "vs": "VS", "ms": "MS", "ms_c": "MSc", "dc": "DC"}
FIDUCIO |= {"cdc": "CDC", "cms_ap": "CMSap", "cms_op": "CMSop"}


def peers(calibrator: str) -> list[Peer]:
    """Return everything that fits the same kind of map."""
    listed = [fiducio(FIDUCIO[calibrator], "adam"), fiducio(FIDUCIO[calibrator], "lbfgs")]
    listed += OTHERS.get(calibrator, [])
    return listed


def fiducio(name: str, optimizer: str) -> Peer:
    """The library of the paper's authors, with its defaults for either optimiser."""

    def prepare(voxels: Voxels) -> Callable[[], Map]:
        import fiducio as library

        logits, labels = torch.from_numpy(voxels.logits[None]), torch.from_numpy(voxels.labels[None])
        calibrator = getattr(library, name)(optimizer=optimizer)

        def fit() -> Map:
            fitted = calibrator.fit(logits, labels)
            return lambda z: fitted.decision_function(torch.from_numpy(z)).double().numpy()

        return fit

    return Peer(f"fiducio {optimizer}", prepare)


def _sklearn_temperature(voxels: Voxels) -> Callable[[], Map]:
    from sklearn.calibration import _TemperatureScaling

    rows = voxels.rows

    def fit() -> Map:
        beta = float(_TemperatureScaling().fit(rows, voxels.labels).beta_)
        return lambda z: beta * z

    return fit


def _sklearn_logistic(solver: str, canonical: bool) -> Callable[[Voxels], Callable[[], Map]]:
    """Multinomial regression without a penalty: matrix scaling on logits, Dirichlet calibration on log-probs."""

    def prepare(voxels: Voxels) -> Callable[[], Map]:
        from sklearn.linear_model import LogisticRegression

        rows = _log_softmax(voxels.rows).astype(np.float32) if canonical else voxels.rows

        def fit() -> Map:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                model = LogisticRegression(C=np.inf, solver=solver, max_iter=1000).fit(rows, voxels.labels)

            def scores(z: np.ndarray) -> np.ndarray:
                linear = (_log_softmax(z) if canonical else z) @ model.coef_.T.astype(np.float64) + model.intercept_
                return np.hstack([np.zeros_like(linear), linear]) if len(model.classes_) == 2 else linear

            return scores

        return fit

    return prepare


def _probmetrics(name: str) -> Callable[[Voxels], Callable[[], Map]]:
    def prepare(voxels: Voxels) -> Callable[[], Map]:
        from probmetrics.calibrators import get_calibrator
        from probmetrics.distributions import CategoricalLogits

        options: dict[str, Any] = {} if name == "temp-scaling" else {f"{name}_print_init_info": False}
        calibrator = get_calibrator(name, **options)
        logits, labels = CategoricalLogits(torch.from_numpy(voxels.rows)), torch.from_numpy(voxels.labels)

        def fit() -> Map:
            calibrator.fit_torch(logits, labels)
            return lambda z: (
                calibrator.predict_proba_torch(CategoricalLogits(torch.from_numpy(z))).get_logits().double().numpy()
            )

        return fit

    return prepare


def _netcal(voxels: Voxels) -> Callable[[], Map]:
    from netcal.scaling import TemperatureScaling

    probs = np.exp(_log_softmax(voxels.rows.astype(np.float64)))

    def fit() -> Map:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            beta = float(np.ravel(TemperatureScaling().fit(probs, voxels.labels).weights)[0])
        return lambda z: beta * z

    return fit


def _torch_uncertainty(name: str) -> Callable[[Voxels], Callable[[], Map]]:
    def prepare(voxels: Voxels) -> Callable[[], Map]:
        import torch_uncertainty.post_processing as library
        from torch.utils.data import DataLoader, TensorDataset

        options = {} if name == "TemperatureScaler" else {"num_classes": len(voxels.logits)}
        scaler = getattr(library, name)(**options)
        pairs = TensorDataset(torch.from_numpy(voxels.rows), torch.from_numpy(voxels.labels))
        loader = DataLoader(pairs, batch_size=1 << 16)

        def fit() -> Map:
            scaler.fit(loader, progress=False)
            return lambda z: scaler(torch.from_numpy(z).float()).log().double().detach().numpy()

        return fit

    return prepare


def _log_softmax(z: np.ndarray) -> np.ndarray:
    shifted = z - z.max(1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(1, keepdims=True))


OTHERS = {
    "ts": [
        Peer("scikit-learn", _sklearn_temperature),
        Peer("probmetrics ts", _probmetrics("temp-scaling")),
        Peer("netcal", _netcal),
        Peer("torch-uncertainty", _torch_uncertainty("TemperatureScaler")),
    ],
    "vs": [Peer("torch-uncertainty", _torch_uncertainty("VectorScaler"))],
    "ms": [
        Peer("scikit-learn lbfgs", _sklearn_logistic("lbfgs", canonical=False)),
        Peer("scikit-learn newton", _sklearn_logistic("newton-cholesky", canonical=False)),
        Peer("torch-uncertainty", _torch_uncertainty("MatrixScaler")),
    ],
    "dc": [
        Peer("scikit-learn lbfgs", _sklearn_logistic("lbfgs", canonical=True)),
        Peer("scikit-learn newton", _sklearn_logistic("newton-cholesky", canonical=True)),
        Peer("torch-uncertainty", _torch_uncertainty("DirichletScaler")),
        Peer("probmetrics svs", _probmetrics("svs"), other_model=True),
        Peer("probmetrics sms", _probmetrics("sms"), other_model=True),
    ],
}
