"""``segcal export``: a calibrator, alone or behind its network, as one graph."""

import argparse
from dataclasses import asdict
from pathlib import Path

import segcal
from segcal.cli.codes import DONE
from segcal.cli.console import Output
from segcal.cli.reading import json_option, load_calibrator
from segcal.cli.wording import plural

ABOUT = {
    "usage": "segcal export CAL MODEL.onnx [--model NETWORK.onnx] [options]",
    "description": "Write one graph with free batch and space, run it, and compare it with the library before it is\n"
    "put in its place: not one voxel may have another winner. With --model, the calibrator is joined to the\n"
    "logits of an ONNX network, whose inputs and outputs keep their names; log_probs is added.",
    "epilog": "examples:\n  segcal export calibrator/ calibrator.onnx\n"
    "  segcal export calibrator/ calibrated.onnx --model network.onnx --logits out",
}


def declare(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("calibrator", type=Path, metavar="CAL", help="a folder written by segcal fit")
    parser.add_argument("output", type=Path, metavar="MODEL.onnx", help="the file to write; .pt2 for torch.export")
    parser.add_argument("--model", type=Path, metavar="NETWORK.onnx", help="a network that ends in logits")
    parser.add_argument("--logits", metavar="NAME", help="the output of the network that is its logits, if several")
    parser.add_argument("--axes", type=int, choices=[1, 2, 3], default=2, help="of space, without --model (default 2)")
    parser.add_argument("--overwrite", action="store_true", help="replace a file that is there")
    json_option(parser)


def run(args: argparse.Namespace) -> int:
    """Write, compare and print."""
    output = Output(args.json)
    done = segcal.export(
        load_calibrator(args), args.output, args.model, output=args.logits, axes=args.axes, overwrite=args.overwrite
    )
    output.say(
        f"{args.output} written: {done.flips:,} of {plural(done.voxels, 'voxel')} have another winner than in the "
        f"library, log-probabilities differ by at most {done.largest_difference:.1e}"
    )
    output.document(asdict(done) | {"path": str(done.path)})
    return DONE
