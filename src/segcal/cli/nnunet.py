"""``segcal nnunet``: fit from a trained nnU-Net's folds, and predict with the flags of ``nnUNetv2_predict``."""

import segcal
from segcal.cli import arguments as shared
from segcal.cli.call import Call
from segcal.cli.commands import Command, Role, argument, flag
from segcal.errors import InputError
from segcal.fitting.artifact import check_vacant


def _run(call: Call) -> int:
    from segcal.integrations import nnunet  # nnU-Net takes seconds to import

    args = call.args
    model = nnunet.model_folder(args.d, args.c, args.tr, args.p)
    if args.action == "fit":
        check_vacant(args.calibrator, args.overwrite)
        labels = args.labels or nnunet.reference_folder(args.d)
        fitted = nnunet.fit_from_folds(model, labels, args.name)
        call.say(str(fitted), f"written to {segcal.save(fitted, args.calibrator, args.overwrite)}")
        return call.end({"calibrator": fitted.calibrator.name, "cases": len(fitted.calibration_ids)})
    if args.i is None or args.o is None:
        raise InputError("-i and -o are missing, but predictions come from images and go to a folder. Name both.")
    how: dict[str, object] = {"tile_step_size": args.step_size, "use_mirroring": not args.disable_tta}
    predictor = nnunet.CalibratedPredictor(args.calibrator, device=nnunet.like_nnunets_command(args.device), **how)
    folds = tuple(fold if fold == "all" else int(fold) for fold in args.f)
    predictor.initialize_from_trained_model_folder(str(model), folds, checkpoint_name=args.chk)
    nnunet.predict_to_folder(
        predictor, args.i, args.o, (args.num_parts, args.part_id), sequential=args.npp == args.nps == 0,
        overwrite=not args.continue_prediction, num_processes_preprocessing=args.npp,
        num_processes_segmentation_export=args.nps, folder_with_segs_from_prev_stage=args.prev_stage_predictions,
    )  # fmt: skip
    call.say(f"calibrated predictions written to {args.o}")
    return call.end({"output": str(args.o), "folds": list(folds)})


NNUNET = Command(
    _run,
    "segcal nnunet fit|predict -d DATASET -c CONFIGURATION ... --calibrator CAL",
    "predict: nnUNetv2_predict with calibrated probabilities, equal to predicting, saving and segcal\n"
    "apply; flags are those of nnUNetv2_predict, and probabilities are always written. fit: from the held-out\n"
    "predictions of cross-validation (nnUNetv2_train ... --val --npz), written to the folder CAL.",
    "examples:\n  segcal nnunet fit -d 4 -c 3d_fullres --calibrator calibrator/\n"
    "  segcal nnunet predict -i images/ -o calibrated/ -d 4 -c 3d_fullres --calibrator calibrator/",
    argument("action", "what to do", choices=["fit", "predict"], metavar="fit|predict"),
    argument(
        "--calibrator", "the folder to read, or with fit to write",
        lambda args: Role.FOLDER if args.action == "fit" else Role.CALIBRATOR, required=True, metavar="CAL",
    ),
    argument("-d", "name or number", required=True, metavar="DATASET"),
    argument("-c", "such as 3d_fullres", required=True, metavar="CONFIGURATION"),
    argument("-tr", "default nnUNetTrainer", default="nnUNetTrainer", metavar="TRAINER"),
    argument("-p", "default nnUNetPlans", default="nnUNetPlans", metavar="PLANS"),
    argument("--name", "fit: this calibrator, without a comparison", metavar="NAME"),
    shared.overwrite("fit: replace a calibrator that is there"),
    argument(
        "--labels", "fit: of the training cases, one per rater; default gt_segmentations", Role.CASES, nargs="+",
        metavar="FOLDER",
    ),
    *shared.JSON,
    groups={
        "predict, as in nnUNetv2_predict": (
            argument("-i", "input folder", Role.BESIDE, metavar="IMAGES"),
            argument("-o", "a new folder", Role.FOLDER, metavar="OUT"),
            argument("-f", "folds (default 0 1 2 3 4)", nargs="+", default=["0", "1", "2", "3", "4"], metavar="FOLD"),
            argument(
                "-chk", "checkpoint (default checkpoint_final.pth)", default="checkpoint_final.pth", metavar="FILE"
            ),
            argument("-step_size", "of the sliding window (default 0.5)", type=float, default=0.5, metavar="STEP"),
            flag("--disable_tta", "without mirroring"),
            flag("--continue_prediction", "leave what is there"),
            argument("-npp", "processes that prepare (default 3)", type=int, default=3, metavar="N"),
            argument(
                "-nps", "processes that export (default 3; both 0: in this one)", type=int, default=3, metavar="N"
            ),
            argument("-prev_stage_predictions", "of a cascade", metavar="FOLDER"),
            argument("-num_parts", "how many calls share the work", type=int, default=1, metavar="N"),
            argument("-part_id", "which of them this is", type=int, default=0, metavar="K"),
            argument("-device", "default cuda", choices=["cpu", "cuda", "mps"], default="cuda"),
        )
    },
)  # fmt: skip
