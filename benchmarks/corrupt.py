"""Write corrupted copies of a folder of pictures: ``python benchmarks/corrupt.py IN OUT --strength mild|strong``.

Run your own network on OUT as you did on IN; the labels stay those of IN. Then ``segcal benchmark`` evaluates the
calibrators that were fitted on the clean predictions on the corrupted ones (``test_on`` of the protocol).

The copies are PNG files of the same stems. OUT.json, beside OUT, says which corruption each picture got, so that the
folder holds pictures and nothing else.
"""

import argparse
import json
import sys
from pathlib import Path

from segcal.atomic import write_text
from segcal.studies.corruptions import SETTINGS, STRENGTHS, corrupt_folder
from segcal.errors import SegcalError


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, metavar="IN", help="folder of pictures")
    parser.add_argument("target", type=Path, metavar="OUT", help="folder to write to")
    parser.add_argument("--strength", choices=STRENGTHS, required=True)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    try:
        chosen = corrupt_folder(args.source, args.target, args.strength, args.seed)
    except SegcalError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    record = {"strength": args.strength, "seed": args.seed, "settings": SETTINGS, "pictures": chosen}
    write_text(args.target.with_name(args.target.name + ".json"), json.dumps(record, indent=1) + "\n")
    counts = {kind: list(chosen.values()).count(kind) for kind in SETTINGS}
    print(f"{len(chosen)} pictures: " + ", ".join(f"{count} {kind}" for kind, count in counts.items()))


if __name__ == "__main__":
    main()
