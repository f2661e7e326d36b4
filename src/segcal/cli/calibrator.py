"""``segcal audit``, ``export`` and ``card``: the promises of a calibrator, its graph, and what is said of it."""

import csv
import io
from dataclasses import asdict
from pathlib import Path

from msgspec import to_builtins

import segcal
from segcal.cli import arguments as shared
from segcal.cli.call import Call
from segcal.cli.commands import ALARM, DONE, Command, Role, argument
from segcal.cli.console import plural
from segcal.documents import read_text, reading
from segcal.errors import InputError


def _audit(call: Call) -> int:
    fitted, given = call.fitted, [call.cases] if call.args.paths else []
    with call.engine(*given), call.bar("trying", None if given else 0):
        found = call.do(segcal.audit, fitted.calibrator, call.own if given else None)
    if call.part is not None:
        return call.end_of_part()
    certificate = fitted.certificate
    residual = "" if certificate.kkt_residual is None else f", residual {certificate.kkt_residual:.1e}"
    call.say(
        str(found),
        f"fitted ({certificate.method}) on {plural(len(fitted.calibration_ids), 'case')}, {certificate.voxels:,} of "
        f"{plural(certificate.voxels_available, 'voxel')}{residual}; for pooling {fitted.pooling}"
        f"{'' if fitted.raters is None else f'; labels of {fitted.raters}'}",
    )
    document = found.to_dict() | {"certificate": certificate.to_dict(), "pooling": fitted.pooling}
    document |= {"raters": to_builtins(fitted.raters)}
    return call.end(document, DONE if found.passed else ALARM)


AUDIT = Command(
    _audit,
    "segcal audit CAL [PREDICTIONS...] [options]",
    "Say for every promise how it is known, and show a concrete input where there is none. Every\n"
    "voxel of the predictions, if there are any, is tried. Exit code 4: a promise is broken.",
    "example:\n  segcal audit calibrator/ predictions/ --kind logits",
    shared.calibrator(),
    argument("paths", "predictions to try it on", Role.CASES, nargs="*", metavar="PREDICTIONS"),
    shared.RESULTS,
    shared.OWN_CLASS,
    groups=shared.ON_CASES | shared.IN_PARTS,
)


def _export(call: Call) -> int:
    done = call.do(segcal.export, call.fitted, call.args.output, output=call.args.logits)
    call.say(
        f"{call.args.output} written: {done.flips:,} of {plural(done.voxels, 'voxel')} have another winner than in the "
        f"library, log-probabilities differ by at most {done.largest_difference:.1e}"
    )
    return call.end(asdict(done) | {"path": str(done.path)})


EXPORT = Command(
    _export,
    "segcal export CAL MODEL.onnx [--model NETWORK.onnx] [options]",
    "Write one graph with free batch and space, run it, and compare it with the library before it is\n"
    "put in its place: not one voxel may have another winner. With --model, the calibrator is joined to the\n"
    "logits of an ONNX network, whose inputs and outputs keep their names; log_probs is added.",
    "examples:\n  segcal export calibrator/ calibrator.onnx\n"
    "  segcal export calibrator/ calibrated.onnx --model network.onnx --logits out",
    shared.calibrator(),
    argument("output", "the file to write; .pt2 for torch.export", Role.FILE, metavar="MODEL.onnx"),
    argument("--model", "a network that ends in logits", Role.READ, metavar="NETWORK.onnx"),
    argument("--logits", "the output of the network that is its logits, if several", metavar="NAME"),
    argument("--axes", "of space, without --model (default 2)", choices=[1, 2, 3], default=2),
    shared.overwrite("replace a file that is there"),
    *shared.JSON,
    shared.OWN_CLASS,
)


def _card(call: Call) -> int:
    args = call.args
    subgroups = None if args.subgroups is None else _subgroups(args.subgroups)
    made = call.do(segcal.card, call.fitted, args.results, args.output, subgroups=subgroups)
    fitted_to, measured_on = made.calibration_data.cases, made.evaluation_data.cases
    call.say(f"{args.output} written: fitted to {plural(fitted_to, 'case')}, measured on {measured_on}")
    return call.end({"card": str(args.output), "subgroups": [each.subgroup for each in made.performance[1:]]})


def _subgroups(file: Path) -> dict[str, str]:
    text = read_text(file)
    with reading(file):
        rows = list(csv.DictReader(io.StringIO(text)))
    if not rows or not {"case", "subgroup"} <= set(rows[0]):
        raise InputError(f"{file} has no columns case and subgroup, but both are needed. Write them in its first line.")
    return {row["case"]: row["subgroup"] for row in rows if row["subgroup"]}


CARD = Command(
    _card,
    "segcal card CAL [RESULTS] -o card.md|card.json|card.html [options]",
    "Write one document that says what was calibrated, on which cases (hashes, not names), what is\n"
    "promised and how that is known, numbers of held-out cases with intervals, and what it is not valid for.\n"
    "RESULTS is what segcal evaluate --csv wrote. Markdown begins with the metadata of a Hugging Face model card.",
    "example:\n  segcal card calibrator/ cases.csv -o card.md",
    shared.calibrator(),
    argument("results", "a file of segcal evaluate --csv", Role.READ, nargs="?", metavar="RESULTS"),
    shared.target("FILE", "ends in .md, .json or .html", Role.FILE),
    argument("--dataset", "what the evaluated cases are called", default="held-out cases", metavar="NAME"),
    argument("--subgroups", "a CSV with the columns case and subgroup", Role.READ),
    argument("--not-valid-for", "add a limit; may be repeated", action="append", default=[], metavar="TEXT"),
    shared.overwrite("replace a file that is no card"),
    *shared.JSON,
    shared.OWN_CLASS,
)
