"""Trials of how commands run: killed and run again, two at once, parts that were tampered with."""

import json
import random
import re
import signal
import struct
from pathlib import Path

import msgspec

from benchmarks.campaign.commands import WRITERS, ended, listed
from benchmarks.campaign.damage import VALUES, damage
from benchmarks.campaign.judge import leftovers, look
from benchmarks.campaign.kinds_files import Trial
from benchmarks.campaign.kinds_places import targets_of
from benchmarks.campaign.sandbox import Box
from benchmarks.campaign.watch import Step


def kills(rng: random.Random, box: Box) -> Trial:
    """Kill or interrupt a command at an event, once or twice, and run it again: the same bytes as without."""
    words = ended([word.format(box=box.work) for word in rng.choice(WRITERS)])
    places = targets_of([word.removeprefix("file://") for word in words], box)
    whole = yield Step(words, places)
    if whole.code != 0:
        return  # the judge has said so
    expected, own = results(places, box), dict(box.own)
    box.reset()
    at_random = max(whole.events, 1)
    for _ in range(rng.choice((1, 1, 2))):
        number = rng.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGINT))
        stopped = yield Step(words, places, event=rng.randint(1, at_random), signal=number)
        done = results(places, box) == expected  # and what is done is not overwritten at a URL
        if number == signal.SIGINT and stopped.code not in (0, 130) and not done:
            box.faults.append(("traceback", f"interrupted, ended with {stopped.code}: {stopped.err[-200:]}"))
    box.own |= {name: made for name, made in own.items() if (box.root / name).exists()}
    again = yield Step(words, places)
    found = results(places, box)
    if found != expected:  # a fit that was killed after its last file is refused, and complete
        names = sorted(name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name))
        said = f"does not go on: {again.err.strip()[-300:]}" if again.code else "other bytes than without the kill"
        box.faults.append(("differs", f"{said}: {', '.join(names[:4])}"))
    if again.code == 0:
        box.faults += leftovers(look(box.root))


def results(places: list[Path], box: Box) -> dict[str, str]:
    """Return what the targets hold; the results inside of a part may be divided otherwise after a kill."""
    return {
        name: entry
        for name, entry in look(box.root).items()
        if any((box.root / name).is_relative_to(place) for place in places)
        and not re.search(r"\.segcal-|\.results$", name)
    }


def together(rng: random.Random, box: Box) -> Trial:
    """Run two commands into one target at the same time; then once more: what one of them writes alone is there."""
    words = [
        word.format(box=box.work) for word in rng.choice([each for each in WRITERS if "://" not in " ".join(each)])
    ]
    places = targets_of(words, box)
    words = ended(words)
    alone = yield Step(words, places)
    expected = results(places, box)
    box.reset()
    beside = words if rng.random() < 0.7 else [{"q": "p"}.get(word, word) for word in words]
    both = yield Step(words, places, beside=[beside])
    if both.code == alone.code == 0 and beside == words and results(places, box) != expected:
        box.faults.append(("differs", "two at once gave other bytes than one"))
    yield Step(words, places)
    if beside == words and alone.code == 0 and words[0] != "view" and results(places, box) != expected:
        box.faults.append(("differs", "run again after two at once gave other bytes than one"))


def merge(rng: random.Random, box: Box) -> Trial:
    """Tamper with a part: its options, its paths, its results; then put the parts together."""
    way = rng.choice((_options, _options, _options, _settings, _settings, _facts, _ledger, _damaged))
    command = "evaluate" if way is _options else rng.choice(("check", "apply", "evaluate"))
    if rng.random() < 0.3:
        (box / f"{command}0" / rng.choice(("notes.txt", ".part/notes.txt", "c0.txt"))).write_text(
            "what the user knows\n"
        )
    way(rng, box / f"{command}0" / ".part")
    if rng.random() < 0.8:  # both parts alike, so that they agree
        _agree(box, command)
    parts = rng.choice(
        ([f"{command}0", f"{command}1"],) * 20
        + ([f"{command}0"], [f"{command}0", f"{command}0"], [f"{command}0", "check1"], ["p", "y"])
    )
    place = rng.choice(("new",) * 20 + ("q", "folder/new", "notes.txt", f"{command}0", f"{command}1/x", "applied"))
    more = ["--overwrite"] if rng.random() < 0.3 else []
    real = (box / place).resolve()
    yield Step(ended(["merge", *parts, "-o", place, *more]), [] if real.is_file() else [real])


PLACES = (
    "notes.txt", "/etc/passwd", "../elsewhere/secret.txt", "../elsewhere/new", "p/c0.npy", "cal", "file:///etc",
    "http://planted.invalid/x", "memory://x", "",
)  # fmt: skip
NAMES = listed("""
csv summary report output calibrator paths command images groups kind workers overwrite json device run merged
strict engine scheduler slurm metrics splits properties part_id labels
""")


def _options(rng: random.Random, part: Path) -> None:
    """Let the options of a part name files of the user's for what is written, or addresses for what is read."""
    content = json.loads((part / "part.json").read_text())
    name = rng.choice(("csv", "summary", "report", "csv", "summary", "report", "images", "paths", "calibrator"))
    place = {"path": rng.choice(PLACES[:4] if name in ("csv", "summary", "report") else PLACES)}
    content["settings"][name] = json.dumps([place, place] if name == "paths" else place)
    (part / "part.json").write_text(json.dumps(content))


def _settings(rng: random.Random, part: Path) -> None:
    """Put other options into a part: paths of the user's, other commands, engines."""
    content = json.loads((part / "part.json").read_text())
    values = [{"path": place} for place in PLACES] + [
        *VALUES,
        "fit",
        "benchmark",
        "apply",
        "demo",
        "nnunet",
        ["q", "y"],
        [{"path": "/"}],
        "dask",
        "os",
    ]
    for name in rng.sample(NAMES, rng.choice((1, 1, 3))):
        value = (
            rng.choice([{"path": place} for place in PLACES])
            if name in NAMES[:7] and rng.random() < 0.6
            else rng.choice(values)
        )
        content["settings"][name] = json.dumps(value)
    (part / "part.json").write_bytes(json.dumps(content).encode("utf-8", "surrogatepass"))


def _facts(rng: random.Random, part: Path) -> None:
    content = json.loads((part / "part.json").read_text())
    name = rng.choice(("folder", "folder", "ids", "cases", "of", "part", "segcal", "version", "format", "finished"))
    content[name] = rng.choice((*PLACES, *VALUES, str(part.parents[2] / "elsewhere"), str(part.parents[1] / "p"), 2))
    (part / "part.json").write_bytes(json.dumps(content).encode("utf-8", "surrogatepass"))


def _ledger(rng: random.Random, part: Path) -> None:
    """Change the table or the results of a block, and keep its lengths right, so that it is believed."""
    path = part / "000000.results"
    content = path.read_bytes()
    head = len(b"segcal results 1\n")
    (length,) = struct.unpack(">Q", content[head : head + 8])
    lines = msgspec.msgpack.decode(content[head + 8 : head + 8 + length])
    bodies, start = [], head + 8 + length
    for line in lines:
        bodies.append(content[start : start + line[4]])
        start += line[4]
    index = rng.randrange(len(lines))
    way = rng.randrange(4)
    if way == 0:
        lines[index][rng.randrange(4)] = rng.choice(
            [value for value in VALUES if not isinstance(value, int) or abs(value) < 2**63 if value != "\ud800"]
        )
    elif way == 1:
        body = bytearray(bodies[index] or b"x")
        for _ in range(rng.choice((1, 4))):
            body[rng.randrange(len(body))] = rng.randrange(256)
        bodies[index] = bytes(body)
    elif way == 2:
        bodies[index] = rng.choice(
            (
                b"",
                b"\xc0",
                msgspec.msgpack.encode({"type": "Payload", "value": [1]}),
                b"\x91" * 2000 + b"\xc0",
                b"\xc6\xff\xff\xff\xff",
                b"\xdd\xff\xff\xff\xff",
            )
        )
    else:
        lines, bodies = lines * 2, bodies * 2
    for line, body in zip(lines, bodies, strict=True):
        line[4] = len(body)
    table = msgspec.msgpack.encode(lines)
    path.write_bytes(content[:head] + struct.pack(">Q", len(table)) + table + b"".join(bodies))


def _damaged(rng: random.Random, part: Path) -> None:
    damage(rng.choice(sorted(part.iterdir())), rng)


def _agree(box: Box, command: str) -> None:
    """Give both parts the same options and facts but for their numbers."""
    own, second = (box / f"{command}{number}/.part/part.json" for number in (0, 1))
    try:
        first = json.loads(own.read_text()) if own.is_file() else None  # no pipe, which would be waited for
    except (OSError, ValueError):
        return
    if isinstance(first, dict) and second.is_file():
        second.write_text(json.dumps(first | {"part": 1, "folder": str(box / f"{command}1")}))
