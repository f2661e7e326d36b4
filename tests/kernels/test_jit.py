"""Machine code is kept, and it is known whether there is some."""

import subprocess
import sys

CODE = """
import sys
from segcal.kernels.jit import compiled, was_compiled
sys.path.insert(0, sys.argv[1])
from loops import double
before = was_compiled(double)
print(before, double(21), was_compiled(double), sum(double.stats.cache_misses.values()))
"""


def test_what_was_compiled_once_is_kept_for_the_next_process(tmp_path):
    text = "from segcal.kernels.jit import compiled\n\n@compiled\ndef double(x):\n    return 2 * x\n"
    (tmp_path / "loops.py").write_text(text)

    def run():
        command = [sys.executable, "-c", CODE, str(tmp_path)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()

    assert run() == ["False", "42", "True", "1"]
    assert run() == ["True", "42", "True", "0"]
