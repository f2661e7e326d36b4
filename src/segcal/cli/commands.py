"""The commands and their parser; what a command imports is imported when it is the one that was called."""

import argparse
from importlib import import_module
from typing import Any

from segcal.cli.parsing import Parser
from segcal.version import __version__

# Each has a module with texts (`ABOUT`), which adds options (`declare`) and runs (`run`), which returns the exit code.
COMMANDS = {
    "demo": "the whole story on embedded data, in minutes",
    "check": "is this folder usable, and what is in it",
    "fit": "fit a calibrator; by default the best one that keeps the mask",
    "apply": "calibrated probabilities, in the format that came in",
    "evaluate": "how honest the confidences are, before and after calibration",
    "audit": "the promises of a calibrator, proved on its parameters and tried on data",
    "trust": "expected Dice and volume of each structure, with intervals; what to look at first",
    "margins": "masks without probabilities: grown and shrunk with stated coverage, volumes with intervals",
    "decide": "masks by a rule: best expected Dice, bounded misses, expected volume",
    "objects": "each connected component with the probability that it is real; lists with few false ones",
    "monitor": "unusual cases and drifts of a stream, without labels",
    "adapt": "class frequencies of another place, from predictions alone",
    "convert": "any format to segcal's own store: pooled, half the size, decisions exact",
    "export": "one ONNX graph of the calibrator, or of a network with its calibrator",
    "view": "files for viewers: NIfTI per class, BIDS, iso-contours, polygons, DICOM SEG",
    "nnunet": "inside nnU-Net v2: fit from the folds of a model, predict calibrated",
    "benchmark": "the paper's protocol on your own cases",
    "report": "one offline page: verdict, tables, diagrams, cases",
    "card": "a calibration card: data, promises, numbers by subgroup, limits",
    "merge": "put the parts of a command together",
}
ALONE = ("demo", "benchmark", "export", "nnunet", "card", "margins", "merge")  # read no predictions of their own
# Commands that read a calibrator.
CALIBRATED = (
    "adapt", "apply", "evaluate", "audit", "trust", "decide", "objects", "monitor", "export", "view", "report", "card",
)  # fmt: skip
# Commands over cases, which may be done in parts or elsewhere; as may the jobs of a benchmark.
DIVIDED = ("check", "fit", "apply", "evaluate", "audit", "trust", "objects")


class _Command(Parser):
    """One command; its module is imported and its options are declared, once, when it is the one that was called."""

    declared = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        if self.prog.endswith(" merge") and "--" in args:  # what follows is another command
            self.set_defaults(made_by=args[args.index("--") + 1 :])
            args = args[: args.index("--")]
        found, unknown = super(_Command, self.declare()).parse_known_args(args, namespace)
        if unknown:  # refused here, and not by the parser of all commands: the sentence names this command's help
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return found, unknown

    def declare(self) -> "_Command":
        if self.declared:
            return self
        name = self.prog.split()[-1]
        module = import_module(f"segcal.cli.{name}")
        for key, text in module.ABOUT.items():  # usage, description, epilog
            setattr(self, key, text)
        if name not in ALONE:
            reading = import_module("segcal.cli.reading")
            reading.reading_options(self)
            reading.common_options(self)
        module.declare(self)
        if name in CALIBRATED:
            import_module("segcal.cli.reading").class_option(self)
        if name in DIVIDED:
            import_module("segcal.cli.engine").engine_options(self)
        self.set_defaults(run=module.run)
        self.declared = True
        return self


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    parser = Parser(
        prog="segcal",
        description="Honest confidence for trained segmentation models, without changing their masks.",
        epilog=(
            "segcal COMMAND --help explains a command, with an example.\n\n"
            "exit codes: 0 done; 2 a mistake that you can repair, in one sentence; 3 done, but some cases failed and "
            "are\nlisted; 4 done, and it is an alarm (audit: a promise is broken; monitor: the calibrator no longer "
            "applies);\n130 interrupted: what is written is complete, and the same command goes on from there"
        ),
    )
    parser.add_argument("--version", action="version", version=f"segcal {__version__}")
    commands: Any = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=_Command)
    for name, about in COMMANDS.items():
        commands.add_parser(name, help=about)
    return parser
