"""``segcal nnunet``: fit from a trained nnU-Net's folds, and predict with the flags of ``nnUNetv2_predict``."""

import argparse
from pathlib import Path
from typing import Any

import segcal
from segcal.cli.codes import DONE
from segcal.cli.console import Output
from segcal.cli.reading import json_option
from segcal.errors import InputError
from segcal.fitting.artifact import check_vacant

ABOUT = {
    "usage": "segcal nnunet fit|predict -d DATASET -c CONFIGURATION ... --calibrator CAL",
    "description": "predict: nnUNetv2_predict with calibrated probabilities, equal to predicting, saving and segcal\n"
    "apply; flags are those of nnUNetv2_predict, and probabilities are always written. fit: from the held-out\n"
    "predictions of cross-validation (nnUNetv2_train ... --val --npz), written to the folder CAL.",
    "epilog": "examples:\n  segcal nnunet fit -d 4 -c 3d_fullres --calibrator calibrator/\n"
    "  segcal nnunet predict -i images/ -o calibrated/ -d 4 -c 3d_fullres --calibrator calibrator/",
}


def declare(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    option = parser.add_argument
    option("action", choices=["fit", "predict"], metavar="fit|predict", help="what to do")
    option("--calibrator", type=Path, required=True, metavar="CAL", help="the folder to read, or with fit to write")
    option("-d", required=True, metavar="DATASET", help="name or number")
    option("-c", required=True, metavar="CONFIGURATION", help="such as 3d_fullres")
    option("-tr", default="nnUNetTrainer", metavar="TRAINER", help="default nnUNetTrainer")
    option("-p", default="nnUNetPlans", metavar="PLANS", help="default nnUNetPlans")
    option("--name", metavar="NAME", help="fit: this calibrator, without a comparison")
    option("--overwrite", action="store_true", help="fit: replace a calibrator that is there")
    option("--labels", type=Path, metavar="FOLDER", help="fit: of the training cases; default gt_segmentations")
    option = parser.add_argument_group("predict, as in nnUNetv2_predict").add_argument
    option("-i", type=Path, metavar="IMAGES", help="input folder")
    option("-o", type=Path, metavar="OUT", help="a new folder")
    option("-f", nargs="+", default=["0", "1", "2", "3", "4"], metavar="FOLD", help="folds (default 0 1 2 3 4)")
    option("-chk", default="checkpoint_final.pth", metavar="FILE", help="checkpoint (default checkpoint_final.pth)")
    option("-step_size", type=float, default=0.5, metavar="STEP", help="of the sliding window (default 0.5)")
    option("--disable_tta", action="store_true", help="without mirroring")
    option("--continue_prediction", action="store_true", help="leave what is there")
    option("-npp", type=int, default=3, metavar="N", help="processes that prepare (default 3)")
    option("-nps", type=int, default=3, metavar="N", help="processes that export (default 3; both 0: in this one)")
    option("-prev_stage_predictions", metavar="FOLDER", help="of a cascade")
    option("-num_parts", type=int, default=1, metavar="N", help="how many calls share the work")
    option("-part_id", type=int, default=0, metavar="K", help="which of them this is")
    option("-device", choices=["cpu", "cuda", "mps"], default="cuda", help="default cuda")
    json_option(parser)


def run(args: argparse.Namespace) -> int:
    """Fit or predict."""
    from segcal.integrations import nnunet  # nnU-Net takes seconds to import

    output = Output(args.json)
    model = nnunet.model_folder(args.d, args.c, args.tr, args.p)
    if args.action == "fit":
        check_vacant(args.calibrator, args.overwrite)
        labels = args.labels or nnunet.reference_folder(args.d)
        fitted = nnunet.fit_from_folds(model, labels, args.name)
        output.say(str(fitted), f"written to {segcal.save(fitted, args.calibrator, args.overwrite)}")
        output.document({"calibrator": fitted.calibrator.name, "cases": len(fitted.calibration_ids)})
        return DONE
    if args.i is None or args.o is None:
        raise InputError("-i and -o are missing, but predictions come from images and go to a folder. Name both.")
    how: dict[str, Any] = {"tile_step_size": args.step_size, "use_mirroring": not args.disable_tta}
    predictor = nnunet.CalibratedPredictor(args.calibrator, device=nnunet.like_nnunets_command(args.device), **how)
    folds = tuple(fold if fold == "all" else int(fold) for fold in args.f)
    predictor.initialize_from_trained_model_folder(str(model), folds, checkpoint_name=args.chk)
    nnunet.predict_to_folder(
        predictor, args.i, args.o, (args.num_parts, args.part_id), sequential=args.npp == args.nps == 0,
        overwrite=not args.continue_prediction, num_processes_preprocessing=args.npp,
        num_processes_segmentation_export=args.nps, folder_with_segs_from_prev_stage=args.prev_stage_predictions,
    )  # fmt: skip
    output.say(f"calibrated predictions written to {args.o}")
    output.document({"output": str(args.o), "folds": list(folds)})
    return DONE
