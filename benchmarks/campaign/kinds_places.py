"""Trials of where is written: outputs that are inputs, links, URLs, hostile names, files of users among ours."""

import json
import os
import random
from pathlib import Path

from benchmarks.campaign.commands import AGAIN, FILE_OUTPUTS, FOLDER_OUTPUTS, LOGITS, ended, listed
from benchmarks.campaign.kinds_files import FOLDERS, READERS, Trial, reading
from benchmarks.campaign.sandbox import Box
from benchmarks.campaign.watch import Step

SIGNED = b"A temporary folder of segcal. It may be removed when no segcal is running.\n"
MAY_OVERWRITE = listed("""
fit apply convert trust evaluate benchmark merge csv summary page report figures card export
""")
# Places that hold something of a user's, or that are an input.
TAKEN = listed("""
p y q p/c0.npy y/c0.npy cal cal/calibrator.json cal/weights.safetensors . .. notes.txt link.txt folder .hidden
protocol.toml cases.csv state.json splits.json store applied results trusted viewed apply0 p/new cal/new hard.npy
p/../p folder/new nowhere/new notes.txt/new applied/c0.npy results/summary.json results/report.html dangling ./q/
../home ../elsewhere/new subgroups.csv
""")
ODD = (
    "new\nline", "\x1b[31mred", "two\u2028lines", "x" * 250, "x" * 300, os.fsdecode(b"caf\xe9"), "./-o", "=cmd",
    "a b", "%s", "'; touch x", "new.md", "$(touch executed)", "\u202egpj.exe", "new.csv", "new.html", "new.json",
    "a/b/c/d", "~", "~/new", "*", "nul", "new/.", "http:", "c:\\x", "café",
)  # fmt: skip
URLS = listed("""
file://{box}/new file:{box}/new file://{box}/p file://{box}/notes.txt memory://new memory:/new
http://127.0.0.1:9/new http://planted.invalid/new ftp://planted.invalid/x s3://planted-bucket/x FILE://{box}/new
file://{box}/../elsewhere github://a:b@/x simplecache::file://{box}/p zip://a::file://{box}/p
https://planted.invalid file:///etc abfs://x/y
""")


def paths(rng: random.Random, box: Box) -> Trial:
    """Write to places that are taken, odd, or URLs; the second time to the same place."""
    (box / "dangling").symlink_to(box / "not there")
    name = rng.choice([*FOLDER_OUTPUTS, *FILE_OUTPUTS])
    is_file = name in FILE_OUTPUTS
    (words,) = (FOLDER_OUTPUTS | FILE_OUTPUTS)[name]
    place = rng.choice(rng.choice((TAKEN, TAKEN, ODD, tuple(url.format(box=box.work) for url in URLS))))
    more = ["--overwrite"] if name in MAY_OVERWRITE and rng.random() < 0.5 else []
    if name == "csv" and rng.random() < 0.3:  # two outputs in one file
        more += [rng.choice(("--summary", "--report")), rng.choice((place, f"./{place}"))]
    step = Step(ended([*words, place, *more]), *_allowed(box, words, place, is_file, "--overwrite" in more, name))
    if name in ("figures", "splits"):
        step.targets = [*step.targets, box / "new.html", box / "new"]
    yield step
    if rng.random() < 0.3:
        yield step


def _allowed(
    box: Box, words: list[str], place: str, is_file: bool, overwrite: bool, name: str
) -> tuple[list[Path], list[Path]]:
    """Return what may be written for an output, and what of a user's may be replaced."""
    if "://" in place or place.startswith(("file:", "memory:")):
        inside = place.startswith("file:") and f"{box.work}/new" in place
        return [box / "new"] if inside else [], []
    path = Path(os.path.normpath(box / place))
    real = Path(os.path.realpath(path))
    if not path.is_relative_to(box.root):
        return [], []
    inputs = [box / each for each in words[1:] if (box / each).exists()]
    beside = real.parent == box / "cal" and real.stem not in ("calibrator", "weights")  # as a card may lie there
    within = any(real.is_relative_to(each) for each in inputs) and not beside
    is_input = within or (real.stem == "hard" and "q" in words)
    found = [path, real] if not is_input or not is_file or (name, place) in SAME else []
    replaced = [real] if is_file and overwrite and not is_input else []
    if overwrite and name in ("evaluate", "trust", "benchmark"):  # names that the help says
        replaced += [real / each for each in ("evaluate.json", "summary.json", "cases.csv", "trust.json", "trust.csv")]
        replaced.append(real / "report.html")
    return [each for each in found if each.is_relative_to(box.root)], replaced


# Outputs that are there from the same command.
SAME = {
    tuple(each.split("="))
    for each in listed("""
fit=cal apply=applied convert=store trust=trusted benchmark=results report=results/report.html figures=results
state=state.json splits=splits.json csv=cases.csv merge=apply0
""")
}
CASE_NAMES = (
    "new\nline", "\x1b[31mred", "two\u2028lines\x85", os.fsdecode(b"caf\xe9"), "-o", "=cmd|' /C calc'!A0", "@sum",
    "x" * 240, "x" * 250, "a b", "$(touch executed)", "..a", ".dotted", "nul", "\u202etxt", "a'b\"c",
    "<script>alert(1)</script>", "{0.__class__}", "%s%n", "[red]", "é", "C0", "c0.npy", "c:d", "a\\b", "\U0001f600",
    "",
)  # fmt: skip


def names(rng: random.Random, box: Box) -> Trial:
    """Give cases, classes and folders names that no one would choose."""
    scores, labels = "q", "y"
    for _ in range(rng.choice((1, 2))):
        name = rng.choice(CASE_NAMES)
        try:
            (box / "q" / f"{name}.npy").write_bytes((box / "p/c5.npy").read_bytes())
            (box / "y" / f"{name}.npy").write_bytes((box / "y/c5.npy").read_bytes())
        except OSError:  # too long for the disk
            continue
    if rng.random() < 0.4:
        folder = rng.choice([each for each in CASE_NAMES if each and each != "-o" and not set(" /") & set(each)])
        (box / "q").rename(box / folder)
        scores = f"./{folder}"
    more = ("--class-names", ",".join(rng.sample(CASE_NAMES, 3))) if rng.random() < 0.4 else ()
    step = reading(rng.choice(READERS), "SCORES", labels, LOGITS, box, more)
    step.run = [scores if word == "SCORES" else word for word in step.run]
    yield step


PLANTED_LOCKS = listed("""
applied/.segcal-lock trusted/.segcal-lock store/.segcal-lock results/.segcal-lock .segcal-lock-cal
.segcal-lock-state.json check0/.part/.segcal-lock
""")
NOTES = listed("""
applied applied/.segcal store store/.segcal trusted trusted/masks results results/units results/tables
results/units/t/repeat_0 check0 check0/.part viewed viewed/c0 cal results/calibrators/t/repeat_0/ts-single
""")
OURS = listed("""
applied/c0.npy applied/.segcal/c0.json applied/calibration.json store/c0.safetensors trusted/trust.json
trusted/report.html results/summary.json results/report.html results/tables/table1_tasks.md state.json cases.csv
splits.json cal/calibrator.json check0/.part/part.json results/units/t/repeat_0/ts-single.jsonl
""")


def planted(rng: random.Random, box: Box) -> Trial:
    """Put files of a user's among ours, or ours among a user's, and run the commands again."""
    words = list(rng.choice(AGAIN))
    own = targets_of(words, box)
    kind = rng.choice((_note, _note, _foreign, _foreign, _lock, _lock, _link, _temporary, _marker, _record, _hard))
    kind(rng, box, own)
    if words[0] in ("apply", "convert", "trust", "benchmark", "fit", "evaluate", "merge") and rng.random() < 0.5:
        words.append("--overwrite")
    replaces = [path for path in own if path.is_file()] if "--overwrite" in words else []
    if words[0] in ("apply", "convert"):  # a result that was changed is made again
        replaces += [box / name for name in ("applied/c0.npy", "applied/.segcal/c0.json", "store/c0.safetensors")]
    if "--overwrite" in words and words[0] in (
        "trust",
        "benchmark",
        "fit",
    ):  # it says so: though segcal did not write them
        replaces += [box / name for name in OURS]
    yield Step(ended(words), own, replaces)
    if rng.random() < 0.3:
        yield Step(ended(words), own, replaces)


def targets_of(words: list[str], box: Box) -> list[Path]:
    """Return what a command may write."""
    named = [words[index + 1] for index, word in enumerate(words) if word in ("-o", "--state", "--csv", "--splits")]
    return [box / name for name in named or ["results/report.html"]]


def _near(rng: random.Random, box: Box, names: tuple[str, ...], own: list[Path]) -> Path:
    """Return one of some places, mostly one that the command writes to."""
    near = [
        name
        for name in names
        if any((box / name).is_relative_to(path) or path.parent == (box / name).parent for path in own)
    ]
    return box / rng.choice(near if near and rng.random() < 0.9 else names)


def _note(rng: random.Random, box: Box, own: list[Path]) -> None:
    folder = _near(rng, box, NOTES, own)
    folder.mkdir(exist_ok=True)
    (
        folder / rng.choice(("notes.txt", "c0.txt", "c11.npy", "README.md", ".notes", "000007.results", "c99.json"))
    ).write_text("what the user knows\n")


def _foreign(rng: random.Random, box: Box, own: list[Path]) -> None:
    path = _near(rng, box, OURS, own)
    path.write_text(rng.choice(("what the user knows\n", '{"made_by": "me"}\n', "{}", "a,b\n1,2\n")))
    box.own.pop(str(path.relative_to(box.root)), None)


def _hard(rng: random.Random, box: Box, own: list[Path]) -> None:
    """Let one of our names be a hard link to a file of the user's: it must not be written through."""
    path = _near(rng, box, OURS, own)
    path.unlink(missing_ok=True)
    path.hardlink_to(box.root / "elsewhere" / "secret.txt")
    box.own.pop(str(path.relative_to(box.root)), None)


def _lock(rng: random.Random, box: Box, own: list[Path]) -> None:
    path = _near(rng, box, PLANTED_LOCKS, own)
    kind = rng.choice((0, 0, 1, 2, 3, 4))
    if kind == 0:
        path.symlink_to(box.root / "elsewhere" / "secret.txt")
    elif kind == 1:
        path.symlink_to(box.root / "elsewhere" / "new file")
    elif kind == 2:
        path.write_text("what the user knows\n")
    elif kind == 3:
        path.mkdir()
    else:
        os.mkfifo(path)


def _link(rng: random.Random, box: Box, own: list[Path]) -> None:
    """Move one of our files or folders elsewhere and leave a link, as users do whose disk is full."""
    path = _near(
        rng, box, (*OURS, "applied/.segcal", "applied", "store", "trusted", "results", "cal", "results/units"), own
    )
    away = box.root / "elsewhere" / path.name
    path.rename(away)
    path.symlink_to(away)
    moved = {name: made for name, made in box.own.items() if (box.root / name).is_relative_to(path)}
    for name, made in moved.items():
        del box.own[name]
        box.own[str((away / (box.root / name).relative_to(path)).relative_to(box.root))] = made
    own.append(away)


def _temporary(rng: random.Random, box: Box, own: list[Path]) -> None:
    """Leave folders that are named like temporary ones and are not."""
    parent = rng.choice(own)
    parent = parent if parent.is_dir() and rng.random() < 0.5 else parent.parent
    folder = parent / f".segcal-{rng.randrange(16**16):016x}"
    folder.mkdir()
    (folder / "notes.txt").write_text("what the user knows\n")
    kind = rng.randrange(4)
    if kind == 0:
        (folder / ".owner").write_bytes(b"me\n")
    elif kind == 1:
        (box.root / "elsewhere" / "owner").write_bytes(SIGNED)
        (folder / ".owner").symlink_to(box.root / "elsewhere" / "owner")
    elif kind == 2:
        os.mkfifo(folder / ".owner")


def _marker(rng: random.Random, box: Box, own: list[Path]) -> None:
    """Plant what says that a folder stands for a URL."""
    url = rng.choice(
        (f"file://{box.root}/elsewhere", "http://planted.invalid/x", f"file://{box.work}/m", "memory://x", "s3://x", 3)
    )
    content = rng.choice((json.dumps({"url": url}), "{}", "[]", "nonsense"))
    for folder in rng.sample(("p", "q", "y", "cal", "applied", "store", "results"), 3):
        (box / folder / ".segcal-remote.json").write_text(content)


def _record(rng: random.Random, box: Box, own: list[Path]) -> None:
    """Plant a record that claims files of the user's."""
    path = box / rng.choice(("applied", "store")) / ".segcal" / f"{rng.choice(('c0', 'c77'))}.json"
    (path.parent.parent / "mine.txt").write_text("what the user knows\n")
    claimed = rng.choice(
        ("mine.txt", "../notes.txt", str(box.root / "elsewhere/secret.txt"), ".", "..", "", "a/../../notes.txt")
    )
    record = {
        "format": "segcal-record",
        "version": 1,
        "case": path.stem,
        "made_from": "",
        "files": {claimed: rng.choice(("", "0" * 64))},
    }
    path.write_text(json.dumps(record))
    box.own[str(path.relative_to(box.root))] = {"applied": "apply", "store": "convert"}[path.parts[-3]]


def remote(rng: random.Random, box: Box) -> Trial:
    """Name URLs where folders are read, and where only a path works."""
    urls = [url.format(box=box.work) for url in URLS] + [
        f"file://{box.work}/{name}" for name in ("q", "q", "q", "y", "cal", "nii", "zarr", "st", "nn", "store")
    ]
    scores, labels, flags = FOLDERS["npy"]
    step = reading(rng.choice(READERS), scores, labels, flags, box)
    words = list(step.run)
    where = rng.choice(
        [
            index
            for index, word in enumerate(words)
            if word in ("q", "y", "cal", "new", "new.csv", "new.html", "new.json")
        ]
    )
    words[where] = rng.choice(urls)
    if rng.random() < 0.3:
        words += [
            rng.choice(("--images", "--properties", "--splits", "--groups", "--csv", "--state", "--report")),
            rng.choice(urls),
        ]
    yield Step(words, [*step.targets, box / "new"])
