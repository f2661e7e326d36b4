"""nnU-Net v2: a predictor that calibrates between its logits and its export.

nnU-Net averages tiles, mirrored copies and folds as logits, resamples them to the image, and takes the softmax there.
So that is where the calibrator stands, at the resolution of the labels and inside the box that was predicted. What is
written is what ``nnUNetv2_predict --save_probabilities`` followed by ``segcal apply`` would write, bit for bit,
without the way over the disk; nnU-Net's own commands take it.

The hook is the plans. Every export asks them for the label manager, in this process and in those that nnU-Net spawns.
The label manager holds the function from logits to probabilities. A calibrator that sees neighbours waits until the
label manager puts the box back into the image. The neighbourhood of a voxel is then the one that ``segcal apply`` would
find in the file.
"""

import json
import multiprocessing
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from segcal.atomic import write_text
from segcal.calibrators.base import Calibrator
from segcal.calibrators.per_region import PerRegion
from segcal.cases.base import SINGLE_FOLDS
from segcal.cases.decision import decision_of
from segcal.cases.formats.nnunet import dataset_regions
from segcal.cases.kinds import to_log_domain
from segcal.cases.open import open_cases
from segcal.cases.records import APPLIED, MARKER
from segcal.cases.suspicion import other_origin, warn
from segcal.errors import InputError
from segcal.fitting.artifact import to_fitted
from segcal.fitting.certificate import Fitted
from segcal.fitting.comparison import choose
from segcal.fitting.fit import fit
from segcal.integrations.attach import Calibrating, calibrated_probs, check_classes, need, to_calibrator
from segcal.target import entries

need("nnunetv2", "nnunet")
from nnunetv2.inference.predict_from_raw_data import nnUNetPredictor  # noqa: E402
from nnunetv2.paths import nnUNet_preprocessed  # noqa: E402
from nnunetv2.utilities.dataset_name_id_conversion import maybe_convert_to_dataset_name  # noqa: E402
from nnunetv2.utilities.file_path_utilities import get_output_folder  # noqa: E402
from nnunetv2.utilities.plans_handling.plans_handler import PlansManager  # noqa: E402


class CalibratedSoftmax:
    """From logits ``(classes, *space)`` of one case to the probabilities that ``segcal apply`` would write."""

    def __init__(self, calibrator: Any) -> None:
        self.calibrator = calibrator

    def __call__(self, logits: Tensor) -> Tensor:
        """Take the softmax, or the sigmoid of regions, as nnU-Net does, and calibrate what it would have stored."""
        decision = decision_of(self.calibrator.regions)
        probs = decision.probabilities(logits.float().cpu())
        return calibrated_probs(self.calibrator, decision.logits(probs, decision.probs, "prediction"), "prediction")


class WholeImage:
    """Puts probabilities of a box back into the image, as nnU-Net does, and calibrates them where all of it is seen."""

    def __init__(self, calibrator: Any, put_back: Any, axes: Sequence[int]) -> None:
        self._calibrator, self._put_back = calibrator, put_back
        self._stored = [0, *(axis + 1 for axis in axes)]  # the order of axes in files, in which windows lie
        self._back = np.argsort(self._stored).tolist()

    def __call__(self, probs: Tensor, box: Sequence[Sequence[int]], shape: Sequence[int]) -> Tensor:
        """Return calibrated probabilities ``(classes, *shape)``; outside of the box they are nnU-Net's."""
        whole: Tensor = self._put_back(torch.as_tensor(probs).float().cpu(), box, shape)
        logits = to_log_domain(whole.permute(self._stored).contiguous(), "probs", "prediction")
        inside = (slice(None), *(slice(*ends) for ends in box))
        mask = torch.zeros(1, *whole.shape[1:], dtype=torch.bool)
        mask[inside] = True
        seen = mask.permute(self._stored)[0]
        whole[inside] = calibrated_probs(self._calibrator, logits, "prediction", seen).permute(self._back)[inside]
        return whole


class CalibratedPlans(PlansManager):
    """Plans whose label manager calibrates."""

    def __init__(self, plans: dict[str, object], calibrator: Any) -> None:
        super().__init__(plans)
        self.calibrator = calibrator

    def get_label_manager(self, dataset_json: dict[str, object], **named: Any) -> Any:
        """Return nnU-Net's label manager with a calibrated softmax, or one that calibrates the whole image."""
        if self.calibrator.pointwise:
            return super().get_label_manager(dataset_json, inference_nonlin=CalibratedSoftmax(self.calibrator), **named)
        labels = super().get_label_manager(dataset_json, **named)
        put_back = labels.revert_cropping_on_probabilities
        labels.revert_cropping_on_probabilities = WholeImage(self.calibrator, put_back, self.transpose_backward)
        return labels


class CalibratedPredictor(nnUNetPredictor):
    """An nnU-Net predictor whose probabilities are calibrated; used like the one that it extends.

    ``predict_from_files(images, out, save_probabilities=True)`` writes them; without it nnU-Net writes label maps
    alone, which no calibrator that keeps the decision changes.

    Args:
        calibrator: a folder, the result of a fit, or a calibrator; it may see neighbours, not images or members.
        **options: of ``nnUNetPredictor``.
    """

    plans_manager: Any

    def __init__(self, calibrator: Calibrating, **options: Any) -> None:
        self.fitted: Calibrator | Fitted = to_fitted(calibrator)
        super().__init__(**options)

    def initialize_from_trained_model_folder(self, *given: Any, **named: Any) -> None:
        """Read the networks of a model's folder."""
        super().initialize_from_trained_model_folder(*given, **named)
        self._calibrate()

    def manual_initialization(self, *given: Any, **named: Any) -> None:
        """Take a network that is there."""
        super().manual_initialization(*given, **named)
        self._calibrate()

    def _calibrate(self) -> None:
        calibrator = to_calibrator(self.fitted)
        labels = self.plans_manager.get_label_manager(self.dataset_json)
        own = calibrator.regions
        regions = dataset_regions(self.dataset_json["labels"], self.dataset_json.get("regions_class_order"))
        if own != regions:
            words = ["classes" if each is None else f"the regions {', '.join(each.names)}" for each in (regions, own)]
            raise InputError(
                f"the model has {words[0]}, but the calibrator was fitted for {words[1]}. Use the calibrator that was "
                "fitted on this model's predictions."
            )
        check_classes(calibrator, labels.num_segmentation_heads, "the model")
        _check_sight(calibrator)
        if isinstance(self.fitted, Fitted):
            self._check_origin(self.fitted)
        self.plans_manager = CalibratedPlans(self.plans_manager.plans, calibrator)
        self.label_manager = self.plans_manager.get_label_manager(self.dataset_json)

    def _check_origin(self, fitted: Fitted) -> None:
        """Refuse classes in another order, and warn if one network was calibrated and several are averaged."""
        if isinstance(fitted.calibrator, PerRegion):
            warn(other_origin(fitted.origin, "" if len(self.list_of_parameters) > 1 else SINGLE_FOLDS))
            return
        names = {int(value): name for name, value in self.dataset_json["labels"].items() if name != "ignore"}
        own = tuple(names[number] for number in sorted(names))
        if fitted.class_names is not None and tuple(fitted.class_names) != own:
            raise InputError(
                f"the model has the classes {', '.join(own)}, but the calibrator was fitted for "
                f"{', '.join(fitted.class_names)}. Use the calibrator that was fitted on this model's predictions."
            )
        warn(other_origin(fitted.origin, "" if len(self.list_of_parameters) > 1 else SINGLE_FOLDS))


def _check_sight(calibrator: Calibrator) -> None:
    """Refuse a calibrator that must see what nnU-Net does not hand over."""
    if calibrator.sees_members:
        unseen = "how much the members disagree, but nnU-Net averages them first"
    elif calibrator.options.get("image_channels"):
        unseen = "the image, but nnU-Net hands over scores alone"
    elif not calibrator.translation_invariant:
        unseen = "the offset of the logits, but nnU-Net's probabilities have lost it"
    elif not calibrator.pointwise and calibrator.preserves is None:
        unseen = "neighbours and may change the mask, but nnU-Net decides before it knows them"
    else:
        return
    raise InputError(
        f"the calibrator is {calibrator.name}, which sees {unseen}. Use one that was chosen on nnU-Net's probabilities."
    )


def model_folder(dataset: str, configuration: str, trainer: str, plans: str) -> Path:
    """Return the folder of a trained model, as nnU-Net's own commands find it."""
    found = get_output_folder(int(dataset) if dataset.isdigit() else dataset, trainer, plans, configuration)
    if not Path(found).is_dir():
        raise InputError(
            f"{found} is not there, but the model is read from it. Train it, or correct -d, -c, -tr or -p."
        )
    return Path(found)


def reference_folder(dataset: str) -> Path:
    """Return the folder of the labels of the training cases."""
    name = maybe_convert_to_dataset_name(int(dataset) if dataset.isdigit() else dataset)
    return Path(nnUNet_preprocessed) / name / "gt_segmentations"


def fit_from_folds(model: Path, labels: Path | Sequence[Path], calibrator: str | None = None) -> Fitted:
    """Fit to what cross-validation predicted (``fold_*/validation``), each case by the network that has not seen it.

    Train with ``nnUNetv2_train ... --npz``, or add the probabilities with ``--val --npz``. It comes with a warning: the
    networks of single folds are not the ensemble that ``nnUNetv2_predict`` averages.

    Args:
        model: the model's folder.
        labels: of the training cases, such as ``nnUNet_preprocessed/DATASET/gt_segmentations``; or one folder a rater.
        calibrator: a name; None to have one chosen.
    """
    if not any(model.glob("fold_*/validation/*.npz")):
        raise InputError(
            f"{model} has no fold_*/validation/*.npz, but probabilities of held-out cases are needed. Run "
            "nnUNetv2_train with --val --npz for each fold."
        )
    cases = open_cases(model, labels)
    return choose(cases) if calibrator is None else fit(calibrator, cases)


def like_nnunets_command(device: str) -> torch.device:
    """Return the device, with as many threads as ``nnUNetv2_predict`` takes: sums of networks depend on them."""
    if device != "mps":
        torch.set_num_threads(multiprocessing.cpu_count() if device == "cpu" else 1)
    return torch.device(device)


def predict_to_folder(
    predictor: CalibratedPredictor, source: Path, target: Path, parts: tuple[int, int], **how: Any
) -> None:
    """Predict images into a folder and mark it, so that nothing calibrates it a second time."""
    there = [name for name in entries(target) if not name.startswith(".")]
    if there and not (target / MARKER).is_file():
        raise InputError(
            f"{target} holds {there[0]}, which is no calibrated prediction, but results would be mixed with it. "
            "Name a new folder."
        )
    calibrator = to_calibrator(predictor.fitted)
    target.mkdir(parents=True, exist_ok=True)
    record = {"format": APPLIED, "made_by": "nnunet predict", "calibrator": calibrator.name}
    write_text(target / MARKER, json.dumps(record, indent=1) + "\n")
    if how.pop("sequential"):
        how = {key: how[key] for key in ("overwrite", "folder_with_segs_from_prev_stage")}
        predictor.predict_from_files_sequential(str(source), str(target), True, **how)
    else:
        predictor.predict_from_files(str(source), str(target), True, num_parts=parts[0], part_id=parts[1], **how)
