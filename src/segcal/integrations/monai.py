"""MONAI: transforms in the place of ``Activations``, an inferer, a metric, a handler and an overlay for bundles.

A calibrator belongs behind everything that averages: sliding windows, test-time augmentation, ensembles of logits. A
:class:`CalibratedInferer` merges first and calibrates second. A calibrated network inside windows is refused, because
averages of log-probabilities are none, and nothing in the result would show it.
"""

import json
import os
from collections.abc import Callable, Hashable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from segcal.atomic import write_text
from segcal.cases.kinds import like_probabilities as looks_like_probabilities
from segcal.cases.suspicion import like_probabilities, warn
from segcal.documents import read_json
from segcal.errors import InputError
from segcal.fitting.artifact import save
from segcal.fitting.certificate import Fitted
from segcal.integrations.attach import (
    CalibratedModel,
    Calibrating,
    calibrated_probs,
    check_classes,
    need,
    to_calibrator,
)
from segcal.metrics.rows import CaseRows, CountedRow

need("monai", "monai")
from monai.config import KeysCollection  # noqa: E402
from monai.data import MetaTensor  # noqa: E402
from monai.handlers import IgniteMetricHandler  # noqa: E402
from monai.inferers import Inferer  # noqa: E402
from monai.metrics import CumulativeIterationMetric  # noqa: E402
from monai.transforms import MapTransform, Transform  # noqa: E402
from monai.utils import TransformBackends, convert_to_dst_type  # noqa: E402


class CalibrateLogits(Transform):
    """Calibrated probabilities of channel-first logits, in the place of ``Activations(softmax=True)``.

    The argmax of the result is that of the logits wherever the calibrator keeps it.

    Args:
        calibrator: a folder, the result of a fit, or a calibrator.
    """

    backend = [TransformBackends.TORCH]  # noqa: RUF012 (MONAI's declaration)

    def __init__(self, calibrator: Calibrating) -> None:
        self.calibrator = to_calibrator(calibrator)

    def __call__(self, img: Any) -> Any:
        """Return probabilities ``(classes, *space)``, float32, with the metadata and on the device of the logits."""
        check_classes(self.calibrator, len(img), "the image")
        warn(like_probabilities(["the image"] if looks_like_probabilities(_plain(img)) else []))
        return convert_to_dst_type(calibrated_probs(self.calibrator, _plain(img)), img, dtype=torch.float32)[0]


class CalibrateLogitsd(MapTransform):
    """:class:`CalibrateLogits` of some keys of a dictionary, in the place of ``Activationsd(softmax=True)``.

    Args:
        keys: of the logits.
        calibrator: a folder, the result of a fit, or a calibrator.
        allow_missing_keys: as in all dictionary transforms of MONAI.
    """

    backend = CalibrateLogits.backend

    def __init__(self, keys: KeysCollection, calibrator: Calibrating, allow_missing_keys: bool = False) -> None:
        super().__init__(keys, allow_missing_keys)
        self.calibrate = CalibrateLogits(calibrator)

    def __call__(self, data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
        """Return the dictionary with probabilities in the place of logits."""
        changed = dict(data)
        for key in self.key_iterator(changed):
            changed[key] = self.calibrate(changed[key])
        return changed


class CalibratedInferer(Inferer):
    """An inferer whose merged logits are calibrated: log-probabilities ``(batch, classes, *space)``.

    Args:
        inferer: any of MONAI's, such as ``SlidingWindowInferer``.
        calibrator: a folder, the result of a fit, or a calibrator.
    """

    def __init__(self, inferer: Inferer, calibrator: Calibrating) -> None:
        super().__init__()
        self.inferer = inferer
        self.calibrator = to_calibrator(calibrator)

    def __call__(self, inputs: Tensor, network: Callable[..., Any], *args: Any, **named: Any) -> Tensor:
        """Run the plain network, merge, then calibrate."""
        if isinstance(network, CalibratedModel):
            raise InputError("network is calibrated already, but the inferer does that. Pass its attribute `model`.")
        merged = self.inferer(inputs, network, *args, **named)
        if not isinstance(merged, Tensor):
            raise InputError(
                f"the inferer returns {type(merged).__name__}, but one tensor of logits is needed. "
                "Use CalibrateLogitsd on the output that holds them."
            )
        return convert_to_dst_type(self.calibrator(_plain(merged)), merged, dtype=torch.float32)[0]


class CalibrationTableMetric(CumulativeIterationMetric):
    """A metric of segcal: top-label calibration errors, NLL and others, from tables that count past 2^24 voxels.

    Per case the number is that of :func:`segcal.evaluate`. The aggregate is the mean over cases, or is read from the
    tables of all cases together, as the metric says or as `average` does. Buffers hold tables, so ranks add up.

    Args:
        name: of :data:`segcal.METRICS`.
        num_classes: how many classes.
        kind: what predictions are: "logits" or "probs"; it is never guessed.
        bins: of confidence, instead of the metric's own.
        ignore_index: the label that does not count.
        average: "cases" or "voxels".
        **raters: the declaration of several, as of :class:`segcal.ArrayCases`: shares have the channels of classes.
    """

    def __init__(
        self,
        name: str,
        num_classes: int,
        kind: str,
        bins: int | None = None,
        ignore_index: int | None = None,
        average: str | None = None,
        **raters: Any,
    ) -> None:
        super().__init__()
        self._reader = CaseRows(name, num_classes, kind, bins, ignore_index, average, **raters)
        self._raters = raters.get("raters")

    def _compute_tensor(self, y_pred: Tensor, y: Tensor | None = None, **named: Any) -> Tensor:
        """Return one row per case: counts, then sums, both as float64, exact to 2^53."""
        if y is None:
            raise InputError("y is missing, but predictions are compared with labels. Pass y=.")
        labels = _plain(y) if self._raters else _classes(_plain(y), y_pred.shape[1])
        rows = self._reader.rows(_plain(y_pred), labels[:, 0] if self._raters == "bits" else labels)
        return torch.from_numpy(np.stack([np.concatenate(row) for row in rows]))

    def aggregate(self) -> Tensor:
        """Return the number of all cases."""
        return torch.tensor(self._reader.value(self._total()), dtype=torch.float64)

    def per_case(self) -> Tensor:
        """Return the number of each case; NaN where it is not defined."""
        numbers = [self._reader.value(self._apart(row)) for row in np.asarray(self.get_buffer())]
        return torch.tensor(numbers, dtype=torch.float64)

    def curve(self) -> dict[str, list[float]]:
        """Return count, accuracy and confidence of each bin of the reliability diagram."""
        return {key: np.asarray(value).tolist() for key, value in vars(self._reader.curve(self._total())).items()}

    def _total(self) -> CountedRow:
        rows = self.get_buffer()
        return self._apart(np.asarray(rows).sum(0)) if rows is not None and len(rows) else self._reader.empty

    def _apart(self, values: np.ndarray) -> CountedRow:
        split = len(self._reader.empty.counts)
        return CountedRow(values[:split].astype(np.int64), values[split:])


class CalibrationTable(IgniteMetricHandler):
    """A handler that attaches a :class:`CalibrationTableMetric` to an engine.

    Args:
        metric: the metric.
        output_transform: from the engine's output to both, such as ``from_engine(["pred", "label"])``.
    """

    def __init__(self, metric: CalibrationTableMetric, output_transform: Callable[..., Any] = lambda x: x) -> None:
        need("ignite", "monai")
        super().__init__(metric_fn=metric, output_transform=output_transform, save_details=False)


def write_overlay(
    bundle: str | os.PathLike[str], fitted: Fitted, key: str = "pred", config: str = "inference.json"
) -> Path:
    """Write ``models/calibrator/`` and ``configs/calibration.json`` into a bundle, and return the latter.

    ``monai.bundle run --config_file "['configs/inference.json','configs/calibration.json']"`` then calibrates: in
    ``postprocessing``, the softmax of `key` becomes :class:`CalibrateLogitsd`; nothing of the bundle is changed.

    Args:
        bundle: its folder.
        fitted: the calibrator.
        key: of the logits.
        config: the configuration whose ``postprocessing`` is followed.
    """
    folder = Path(bundle)
    source, target = folder / "configs" / config, folder / "configs" / "calibration.json"
    if not source.is_file():
        raise InputError(f"{source} is missing, but its postprocessing is followed. Name the bundle's folder.")
    section = read_json(source).get("postprocessing")
    if not isinstance(section, dict) or not isinstance(section.get("transforms"), list):
        raise InputError(f"{source} has no postprocessing with transforms, but one of them is replaced. Add it first.")
    if target.exists():
        raise InputError(f"{target} exists, but it would be lost. Move it away.")
    calibrating = {
        "_target_": "segcal.integrations.monai.CalibrateLogitsd",
        "keys": key,
        "calibrator": "$@bundle_root + '/models/calibrator'",
    }
    kept = [step for step in section["transforms"] if not _is_softmax(step, key)]
    save(fitted, folder / "models" / "calibrator")
    overlay = {"postprocessing": {**section, "transforms": [calibrating, *kept]}}
    return write_text(target, json.dumps(overlay, indent=4) + "\n")


def _is_softmax(step: Any, key: str) -> bool:
    name = str(step.get("_target_", "")).rpartition(".")[2] if isinstance(step, dict) else ""
    return name in ("Activationsd", "ActivationsD", "ActivationsDict") and step.get("keys") in (key, [key])


def _plain(values: Any) -> Any:
    return values.as_tensor() if isinstance(values, MetaTensor) else values


def _classes(labels: Tensor, num_classes: int) -> Tensor:
    """Return label maps ``(batch, *space)`` of MONAI's ``(batch, 1, *space)`` or one-hot labels."""
    if labels.shape[1] == 1:
        return labels[:, 0].long()
    if labels.shape[1] == num_classes:
        return labels.argmax(1)
    raise InputError(
        f"y has shape {tuple(labels.shape)}, but class indices (batch, 1, *space) or one-hot labels (batch, "
        f"{num_classes}, *space) are needed. Add the channel axis with y[:, None]."
    )
