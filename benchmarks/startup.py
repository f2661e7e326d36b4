"""The cost of starting: CPU time of importing the package and of its help, beside Python and beside torch.

    python -m benchmarks.startup

Ratios to `python -c pass`, smallest of five runs each, all of one run of this script.
"""

import resource
import subprocess
import sys

RUNS = 5
ROWS = {
    "python -c pass": ["-c", "pass"],
    "import segcal": ["-c", "import segcal"],
    "segcal --help": ["-c", "from segcal_command import main; main()", "--help"],
    "segcal fit --help": ["-c", "from segcal_command import main; main()", "fit", "--help"],
    "import torch": ["-c", "import torch"],
}


def cpu_seconds(arguments: list[str]) -> float:
    """Return the CPU time of one process, its own and the system's."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Print the table."""
    found = {name: min(cpu_seconds(arguments) for _ in range(RUNS)) for name, arguments in ROWS.items()}
    base = found["python -c pass"]
    print("| start | CPU s | x python |\n|---|--:|--:|")
    for name, seconds in found.items():
        print(f"| {name} | {seconds:.3f} | {seconds / base:.1f} |")


if __name__ == "__main__":
    main()
