"""Peak memory does not grow with the number of cases: measured in a process of its own, on 10 and then on 30 cases.

A process's peak never falls, so what 30 cases needed above 10 shows as growth; the commands run on 10 cases twice
before, since a first run also loads libraries. A case is 2.4 MB: a command that kept cases would grow by about
50 MB.
"""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

TOLERANCE = 12e6  # bytes: what the allocator may take more, and the drawn voxels and tables that are meant to be kept
CASE = (4, 390, 390)

SCRIPT = """
import contextlib, io, json, resource, sys
from segcal.cli import main

peaks = []
for call in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        main(call)
    peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
print(json.dumps(peaks))
"""


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Ten cases, and thirty that are links to them."""
    home = tmp_path_factory.mktemp("memory")
    rng = np.random.default_rng(0)
    logits = [4 * rng.normal(size=CASE).astype(np.float32) for _ in range(2)]
    for count in (10, 30):
        for name in ("predictions", "labels"):
            (home / f"{name}{count}").mkdir()
        for number in range(count):
            scores, labels = home / f"predictions{count}" / f"c{number:03d}.npy", home / f"labels{count}"
            if count == 10:
                np.save(scores, logits[number % 2])
                np.save(labels / scores.name, logits[number % 2].argmax(0).astype(np.uint8))
            else:
                os.link(home / "predictions10" / f"c{number % 10:03d}.npy", scores)
                os.link(home / "labels10" / f"c{number % 10:03d}.npy", labels / scores.name)
    return home


def test_thirty_cases_need_no_more_memory_than_ten(folders):
    commands = {
        "fit": ["--calibrator", "ts", "--voxels", "100", "-o", str(folders / "cal")],
        "evaluate": ["--metrics", "nll,ece,dice"],
    }
    calls = [
        [command, str(folders / f"predictions{count}"), str(folders / f"labels{count}"), "--kind", "logits", *extra]
        for count in (10, 10, 30)
        for command, extra in commands.items()
    ]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(calls)],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
        env=environment,
    )
    *_, few, _, many = json.loads(done.stdout.splitlines()[-1])
    assert many - few < TOLERANCE
