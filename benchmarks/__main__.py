"""List the commands of this folder with one line each: ``python -m benchmarks``."""

from pathlib import Path

from paper.__main__ import print_commands

if __name__ == "__main__":
    print_commands(Path(__file__).parent)
