"""A scene of a thousand million pixels through ``segcal apply``: peak memory of the process, time, and the result.

``python -m benchmarks.scene FOLDER`` makes GeoTIFF scenes of two sizes from one block of made-up probabilities (one
band, tiles of 512, zstd), calibrates each in a process of its own and looks at the results with rasterio alone: every
window against a temperature in numpy where the calibrator is ``ts``; decisions and nodata for any. Peak memory should
be that of a window, whatever the size of the scene. It takes some minutes and a few gigabytes, which are removed again.
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import rasterio
from rasterio.windows import Window
from scipy.ndimage import gaussian_filter

import segcal

BLOCK = 2048
NODATA = -1.0
# What the system says of a finished process begins with the memory of the one that started it, so it is asked before.
COMMAND = """
import atexit, pathlib, segcal_command, sys
status, peak = pathlib.Path("/proc/self/status"), pathlib.Path(sys.argv.pop(1))
atexit.register(lambda: peak.write_text(status.read_text().split("VmHWM:")[1].split()[0]))
segcal_command.main()
"""


def block() -> np.ndarray:
    """Return probabilities of a few levels, smooth in space, with a corner of no data."""
    smooth = gaussian_filter(np.random.default_rng(0).normal(size=(BLOCK, BLOCK)), 12, mode="wrap")
    probs = 1 / (1 + np.exp(-3 * smooth / smooth.std()))
    probs = ((np.floor(64 * probs) + 0.5) / 64).astype(np.float32)
    probs[:300, :200] = NODATA
    return probs


def write_scene(path: Path, side: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    about = {"driver": "GTiff", "dtype": "float32", "count": 1, "nodata": NODATA, "crs": "EPSG:32632", "tiled": True}
    packed = {"compress": "zstd", "zstd_level": 1, "blockxsize": 512, "blockysize": 512, "BIGTIFF": "YES"}
    place, values = rasterio.Affine(0.5, 0, 500_000, 0, -0.5, 5_000_000), block()
    with rasterio.open(path, "w", width=side, height=side, transform=place, **about, **packed) as file:
        for row in range(0, side, BLOCK):
            for column in range(0, side, BLOCK):
                file.write(values, 1, window=Window(column, row, BLOCK, BLOCK))


def fitted(name: str, folder: Path) -> float | None:
    """Save a calibrator that was fitted to pieces of the block, and return its temperature if it has one."""
    rng, values = np.random.default_rng(1), block()
    pieces = [values[at : at + 128, 512:700].astype(np.float64) for at in range(512, 512 + 8 * 128, 128)]
    labels = [(rng.random(piece.shape) < 0.25 + piece / 2).astype(np.int64) for piece in pieces]
    cases = segcal.as_cases([piece.astype(np.float32) for piece in pieces], labels, kind="sigmoid")
    made = segcal.fit(name, cases)
    segcal.save(made, folder)
    return made.calibrator.temperature


def different(before: Path, after: Path, temperature: float | None) -> str:
    """Say what was found in all windows of the result."""
    worst, flips, nothing, place = 0.0, 0, 0, True
    with rasterio.open(before) as one, rasterio.open(after) as other:
        place = (one.transform, one.crs, one.nodata, one.shape) == (
            other.transform,
            other.crs,
            other.nodata,
            other.shape,
        )
        for row in range(0, one.height, BLOCK):
            for column in range(0, one.width, BLOCK):
                p, q = (file.read(1, window=Window(column, row, BLOCK, BLOCK)) for file in (one, other))
                inside = p != NODATA
                nothing += int((inside != (q != NODATA)).sum())
                flips += int(((p > 0.5) != (q > 0.5))[inside].sum())
                if temperature is not None:
                    p = np.where(inside, p, 0.5).astype(np.float64)
                    expected = 1 / (1 + ((1 - p) / p) ** (1 / temperature))
                    worst = max(worst, float(np.abs(expected - q)[inside].max()))
    about = "" if temperature is None else f"{worst:.1e} from numpy at most, "
    return (
        f"{about}{flips} decisions changed, nodata differs at {nothing}, georeference {'equal' if place else 'DIFFERS'}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sides", type=int, nargs="+", default=[4096, 32768])
    parser.add_argument("--calibrators", nargs="+", default=["ts", "conic"])
    args = parser.parse_args()
    print(
        "| pixels | calibrator | peak MiB | CPU s | wall s | in MB | out MB | |\n"
        "| ---: | --- | ---: | ---: | ---: | ---: | ---: | --- |"
    )
    for side in args.sides:
        home = args.folder / f"scene_{side}"
        home.mkdir(parents=True)
        write_scene(home / "in" / "scene.tif", side)
        for name in args.calibrators:
            temperature = fitted(name, home / f"cal_{name}")
            call = [
                sys.executable,
                "-c",
                COMMAND,
                str(home / "peak"),
                "apply",
                str(home / f"cal_{name}"),
                str(home / "in"),
            ]
            begun = time.perf_counter()
            process = subprocess.Popen([*call, "-o", str(home / name), "--kind", "sigmoid", "--quiet"])
            _, status, used = os.wait4(process.pid, 0)
            wall, out = time.perf_counter() - begun, home / name / "scene.tif"
            if status:
                raise SystemExit(f"segcal apply ended with {status}")
            sizes = [path.stat().st_size / 1e6 for path in (home / "in" / "scene.tif", out)]
            cells = [
                f"{side * side:,}",
                name,
                f"{int((home / 'peak').read_text()) / 1024:.0f}",
                f"{used.ru_utime + used.ru_stime:.0f}",
            ]
            cells += [f"{wall:.0f}", *(f"{size:.0f}" for size in sizes)]
            print(f"| {' | '.join(cells)} | {different(home / 'in' / 'scene.tif', out, temperature)} |", flush=True)
            shutil.rmtree(home / name)
        shutil.rmtree(home)


if __name__ == "__main__":
    main()
