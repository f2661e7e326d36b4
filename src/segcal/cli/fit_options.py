"""The options of ``segcal fit``."""

import argparse
from pathlib import Path

from segcal.calibrators import CALIBRATORS, PEERS
from segcal.cli.parsing import at_least_one, object_rule, voxels

ABOUT = {
    "usage": "segcal fit PREDICTIONS... LABELS -o CAL [options]",
    "description": "Compare calibrators on cases that are held out in turn, fit the winner to all cases, save it.\n"
    "By default calibrators compete that ignore the logit offset and keep the mask, conic\n"
    "scaling (which looks around the voxel) among them, with both poolings of an ensemble. One that\n"
    "is not clearly better than a temperature (ts) is not taken.",
    "epilog": "examples:\n  segcal fit predictions/ labels/ -o calibrator/ --kind logits --ignore 255\n"
    "  segcal fit member_*/ labels/ -o calibrator/ --kind logits --pool mean_logits --calibrator ts",
}

OBJECTS = "also learn which connected components are real, for segcal objects; of these structures (a,b,...) alone"


def declare(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    option = parser.add_argument
    option("paths", nargs="+", type=Path, metavar="PREDICTIONS LABELS", help="folders; the last one holds the labels")
    option("-o", "--output", type=Path, required=True, metavar="CAL", help="where the calibrator goes")
    option("--overwrite", action="store_true", help="replace a calibrator that is there, also one that is damaged")
    alone = "this one, without a comparison; see docs/calibrators.md"
    option("--calibrator", choices=[*dict.fromkeys((*CALIBRATORS, *PEERS))], metavar="NAME", help=alone)
    kept = ["order", "argmax", "none"]
    option("--preserve", choices=kept, default="argmax", help="what must be kept (default argmax)")
    option("--allow-offset-dependent", action="store_true", help="calibrators such as vs and ms compete")
    option = parser.add_argument_group("which cases").add_argument
    share = "compare on this share of the cases alone; default: hold out whole groups of all cases in turn"
    option("--val-share", type=float, metavar="SHARE", help=share)
    unseen = "left unseen, for segcal evaluate (default 0)"
    option("--test-share", type=float, default=0, metavar="SHARE", help=unseen)
    option("--seed", type=int, default=0, help="of the division and of the voxel sample (default 0)")
    option("--splits", type=Path, metavar="FILE", help="splits.json: used if it is there, else written")
    option("--validation", type=Path, nargs="+", metavar="FOLDER", help="predictions for validation alone")
    option("--validation-labels", type=Path, metavar="FOLDER", help="their labels; default: LABELS")
    option = parser.add_argument_group("what segcal trust, decide, objects and monitor compare with").add_argument
    judges = "labelled cases: those of the fit, each judged by a fit without it (folds), validation cases, those of\n"
    judges += "--test-share, or none; default: validation cases, or else folds"
    option("--trust-on", choices=["folds", "validation", "test", "none"], help=judges)
    option("--trust-predictions", type=Path, nargs="+", metavar="FOLDER", help="predictions of cases for this alone")
    option("--trust-labels", type=Path, metavar="FOLDER", help="their labels; default: LABELS")
    option("--objects", nargs="?", const="", metavar="NAMES", help=OBJECTS)
    real = "an object is real if its iou or overlap with one of the labels is at least this (default iou=0.1)"
    option("--object-rule", type=object_rule, default=("iou", 0.1), metavar="MEASURE=SHARE", help=real)
    least = "components of fewer voxels are no objects (default 1)"
    option("--smallest-object", type=at_least_one, default=1, metavar="VOXELS", help=least)
    option = parser.add_argument_group("how to fit").add_argument
    option("--voxels", type=voxels, default=20_000, metavar="N|all", help="of each case (default 20000)")
    option("--lam", type=float, help="strength on off-diagonal weights; default: chosen on held-out cases")
    option("--mu", type=float, help="strength on biases; default: chosen on held-out cases")
    option("--method", choices=["exact", "paper"], default="exact", help="paper: Adam and a search")
    option("--verify", action="store_true", help="also give the residual on all voxels")
