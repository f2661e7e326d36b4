"""What ``segcal trust`` writes for each case, where it is asked for: inner and outer masks, reports for a PACS."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from segcal.cases import FileCases
from segcal.cases.parallel import map_ids
from segcal.cli.console import Output
from segcal.cli.engine import Work
from segcal.cli.wording import plural
from segcal.errors import InputError
from segcal.fitting import Fitted
from segcal.integrations.attach import need
from segcal.integrations.dicom import read_segments
from segcal.integrations.dicom_sr import write_reports
from segcal.trust.guarantees import MaskWriter, masks_folder
from segcal.trust.result import Trust


def file_options(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    option = parser.add_argument
    option("--masks", action="store_true", help="also write masks/CASE.npy: 1 outer mask, 2 mask, 3 inner mask")
    images = "DICOM images, one sub-folder per case: also write sr/CASE.dcm, a DICOM SR on them"
    option("--series", type=Path, metavar="FOLDER", help=images)
    option("--seg", type=Path, metavar="FOLDER", help="what segcal view --to dicom-seg wrote, for the SR to refer to")
    dicom_options(parser)


def dicom_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of every command that writes DICOM."""
    about = "codes of the structures for DICOM, in a file as dcmqi takes it"
    parser.add_argument("--segments", type=Path, metavar="JSON", help=about)
    parser.add_argument("--description", metavar="TEXT", help="of the DICOM series that are written")


def check_files(args: argparse.Namespace, titles: Sequence[str]) -> None:
    """Refuse what cannot be written, before the work begins."""
    if args.series is None and (args.seg or args.segments or args.description is not None):
        raise InputError("--series is missing, but --seg, --segments and --description are for DICOM. Name the images.")
    if args.series is not None:
        if args.all_classes:
            raise InputError("--all-classes is given, but class 0 has no DICOM segment. Leave it or --series out.")
        need("highdicom", "dicom")
        read_segments(args.segments, titles[1:], args.description)


def write_files(
    args: argparse.Namespace, fitted: Fitted, cases: FileCases, result: Trust, work: Work, output: Output
) -> None:
    """Write what the options ask for."""
    failed, again = None if args.strict else output.failed, args.overwrite or work.part is not None  # a part goes on
    if args.masks:
        structures = range(0 if args.all_classes else 1, fitted.calibrator.num_classes)
        with masks_folder(args.output / "masks", again, whole=args.merged is None) as folder:
            write = MaskWriter(fitted, cases, structures, 1 - args.level, folder)
            written = list(map_ids(work.own(cases).ids, write, work.workers, failed))
        output.say(f"{plural(len(written), 'case')} written to {args.output / 'masks'}")
    if args.series is not None and work.part is None:
        how = (args.series, args.seg, args.segments, args.description, failed, args.overwrite)
        made = write_reports(result, args.output / "sr", *how)
        output.say(f"{plural(len(made), 'case')} written to {args.output / 'sr'}")
