"""``segcal trust`` and ``segcal objects``: how far structures, and objects, of new cases can be trusted."""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import segcal
from segcal.cases.kept import PICTURED
from segcal.cases.parallel import map_ids
from segcal.cli import arguments as shared
from segcal.cli.call import Call
from segcal.cli.commands import Command, Role, argument, flag
from segcal.cli.console import plural
from segcal.errors import InputError, load_extra
from segcal.integrations.attach import need
from segcal.integrations.dicom import read_segments
from segcal.integrations.dicom_sr import write_reports
from segcal.integrations.viewers import LIBRARIES, ObjectMaps
from segcal.names import class_titles
from segcal.report.evaluated import write_trust_page
from segcal.report.page import TRUST_PAGE, WORKLIST, write_worklist
from segcal.target import check_file, claim
from segcal.trust.guarantees import MaskWriter, masks_folder, require_empty
from segcal.trust.objects import Objects
from segcal.trust.result import WORKLIST_SIGNATURE, Trust

TRUST_FILES = Trust.signatures() | {"worklist.csv": WORKLIST_SIGNATURE, "report.html": TRUST_PAGE}
OBJECT_FILES = Objects.signatures() | {"worklist.html": WORKLIST}


def _named(text: str) -> tuple[str, str]:
    """Return the name and the expression of a biomarker."""
    name, equals, expression = text.partition("=")
    if not equals or not name.strip():
        raise InputError(f"--biomarker is {text!r}, but NAME=EXPRESSION is needed. Write EF=({{a@1}}-{{a@2}})/{{a@1}}.")
    return name.strip(), expression


def _taus(given: Sequence[str], titles: Sequence[str]) -> float | dict[str, float]:
    """Return the Dice below which masks are bad, of ["0.8"], of ["liver=0.9"], or of both."""
    found: dict[str, float] = {}
    for text in sorted(given, key=lambda text: "=" in text):  # a number for all comes before exceptions
        name, equals, number = text.rpartition("=")
        try:
            found |= {name: float(number)} if equals else dict.fromkeys(titles, float(number))
        except ValueError:
            raise InputError(
                f"--tau is {text!r}, but a number or STRUCTURE=NUMBER is needed. Write 0.8 or liver=0.8."
            ) from None
    return found if any("=" in text for text in given) else float(given[-1])


def _check_files(call: Call, files: Mapping[str, re.Pattern[bytes]], **folders: object) -> None:
    """Refuse, before any case is read, files of others, and folders with anything in them that are asked for."""
    for name, asked in folders.items():
        if asked and not call.args.overwrite and call.part is None:
            require_empty(call.args.output / name)
    for name, signature in files.items():
        check_file(call.args.output / name, signature, (), call.args.overwrite)


def _write_each(call: Call, name: str, make: Callable[[Path], Callable[[str], object]]) -> None:
    """Write files of every case into a folder of the output; `make` takes the folder and returns what writes a case."""
    again = call.args.overwrite or call.part is not None  # a shard goes on
    with masks_folder(call.args.output / name, again, whole=call.args.merged is None) as folder:
        written = list(map_ids(call.own.ids, make(folder), call.workers, call.failed))
    call.say(f"{plural(len(written), 'case')} written to {call.args.output / name}")


def _trust(call: Call) -> int:
    args, fitted = call.args, call.fitted
    call.cases = cases = call.cases.keeping(PICTURED)  # the page has images of a few
    titles = class_titles(fitted.class_names, fitted.calibrator.num_classes)
    if args.series is None and (args.seg or args.segments or args.description is not None):
        raise InputError("--series is missing, but --seg, --segments and --description are for DICOM. Name the images.")
    if args.series is not None:
        if args.all_classes:
            raise InputError("--all-classes is given, but class 0 has no DICOM segment. Leave it or --series out.")
        need("highdicom", "dicom")
        read_segments(args.segments, titles[1:], args.description)
    expressions = args.biomarker if args.part_id is None else []  # a shard has not all cases of a subject
    given = {"tau": _taus(args.tau or ["0.7"], titles), "biomarkers": dict(_named(text) for text in expressions)}
    with claim(args.output), call.engine(cases):
        _check_files(call, TRUST_FILES, masks=args.masks, sr=args.series)
        with call.bar("judging"):
            found = call.do(segcal.trust, fitted, call.own, background=not args.all_classes, **given)
        if call.part is None:
            images = {} if cases.image_folder is None else cases.image_folder.files
            paths = {case: str(some[0].absolute()) for case, some in images.items()}
            found.write(args.output)
            found.to_worklist(args.output / "worklist.csv", paths)
            write_trust_page(args.output / "report.html", found, fitted, cases)
        if args.masks:
            structures = range(0 if args.all_classes else 1, fitted.calibrator.num_classes)
            _write_each(call, "masks", lambda folder: MaskWriter(fitted, cases, structures, 1 - args.level, folder))
        if args.series is not None and call.part is None:
            how = (args.series, args.seg, args.segments, args.description, call.failed, args.overwrite)
            made = write_reports(found, args.output / "sr", *how)
            call.say(f"{plural(len(made), 'case')} written to {args.output / 'sr'}")
    more = ["segcal objects lists each component of these masks"] if fitted.objects is not None else []
    return call.end_with(found, *more)


TRUST = Command(
    _trust,
    "segcal trust CAL PREDICTIONS... -o OUT [options]",
    "Estimate, for every case and structure and without labels, Dice and volume with intervals, and\n"
    "say which masks a person should look at and why. OUT gets trust.json, trust.csv, report.html, and\n"
    "worklist.csv: one verdict per case, and what to look at or to annotate first.\n"
    "The calibrator must have been fitted by segcal fit, which remembers labelled cases to compare with.",
    "examples:\n  segcal trust calibrator/ predictions/ --kind logits -o trust/\n"
    "  segcal trust calibrator/ predictions/ --kind logits -o trust/ --link '(patient\\d+)_frame(\\d+)' \\\n"
    "    --biomarker 'EF=100*({left ventricle@01}-{left ventricle@02})/{left ventricle@01}'\n"
    "  segcal trust calibrator/ predictions/ -o trust/ --tau 0.8 --tau tumour=0.6 --series dicom/",
    *shared.CALIBRATED,
    shared.target("OUT", "a folder for the results"),
    argument("--level", "of all intervals (default 0.9)", default=0.9),
    argument("--tau", "a mask is bad below it (default 0.7), of all structures or of STRUCTURE=DICE; may be given "
             "several times", action="append", metavar="DICE"),
    argument("--link", "cases of one subject: two groups, subject and phase", metavar="REGEX"),
    argument("--biomarker", "an expression of volumes, {structure@phase} or {structure}; may be given several "
             "times", action="append", default=[], metavar="NAME=EXPR"),
    shared.ALL_CLASSES,
    flag("--masks", "also write masks/CASE.npy: 1 outer mask, 2 mask, 3 inner mask"),
    argument("--series", "DICOM images, one sub-folder per case: also write sr/CASE.dcm, a DICOM SR on them",
             Role.BESIDE),
    argument("--seg", "what segcal view --to dicom-seg wrote, for the SR to refer to", Role.BESIDE),
    *shared.DICOM, shared.ANY_FILES, *shared.POOLED,
    groups=shared.ON_CASES | shared.IN_PARTS,
)  # fmt: skip


def _objects(call: Call) -> int:
    args = call.args
    if (args.maps == "dicom-seg") != (args.series is not None):
        raise InputError("--series goes with --maps dicom-seg, but one stands alone. Give both, or neither.")
    fitted, cases = call.fitted, call.cases
    if args.maps is not None:
        load_extra(*LIBRARIES.get(args.maps, ("nibabel", "nifti")))
    if args.series is not None:
        cases.require_classes("DICOM SEG of objects")
    with claim(args.output), call.engine(cases):
        _check_files(call, OBJECT_FILES, maps=args.maps)
        with call.bar("finding objects"):
            found = call.do(segcal.objects, fitted, call.own)
        if call.part is None:
            found.write(args.output)
            write_worklist(args.output / "worklist.html", found)
        if args.maps is not None:
            _write_each(call, "maps", lambda folder: ObjectMaps(fitted, cases, found.rows, folder, args.series))
    return call.end_with(found)


OBJECTS = Command(
    _objects,
    "segcal objects CAL PREDICTIONS... -o OUT [options]",
    "List the connected components of every mask without labels: the probability that each is real,\n"
    "its size with an interval, its expected Dice and position, a list of each case of which few are false, and\n"
    "how many are missed. OUT gets objects.json, objects.csv and worklist.html. The calibrator must have\n"
    "been fitted by segcal fit --objects.",
    "examples:\n  segcal objects calibrator/ predictions/ --kind logits -o objects/ --fdr 0.1\n"
    "  segcal objects calibrator/ predictions/ -o objects/ --maps dicom-seg --series dicom/",
    shared.calibrator(about="a folder written by segcal fit --objects"),
    shared.PREDICTIONS,
    shared.target("OUT", "a folder for the results"),
    argument("--labels", "label maps, if there are any: also say what they say", Role.CASES),
    argument("--level", "of the intervals (default 0.9)", default=0.9),
    argument("--fdr", "largest mean false share of a case's list (default 0.1)", default=0.1),
    flag("--proved", "learn on half of the labelled groups, bound on the others"),
    argument("--maps", "also write one number per object, for viewers, to maps/", choices=["nifti", "dicom-seg"]),
    argument("--series", "DICOM images, one sub-folder per case, for dicom-seg", Role.BESIDE),
    shared.ANY_FILES, *shared.POOLED,
    groups=shared.ON_CASES | shared.IN_PARTS,
)  # fmt: skip
