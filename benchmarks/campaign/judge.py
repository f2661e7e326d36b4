"""What a trial may leave behind, and what it may say: the box before and after a step, compared.

A file that segcal did not write has the content, the kind (file, link, folder) and the place that it had, unless the
command was told to replace it. New files lie in the targets that the command names. A step ends with one of the five
exit codes, in time, and an error is one sentence in the house's form. After it ends by itself nothing temporary stays.
"""

import hashlib
import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path

from benchmarks.campaign.watch import Outcome, Step

CODES = (0, 2, 3, 4, 130)
# The faults of a trial, the worst first; broken is the campaign itself.
FAULTS = (
    "lost", "code", "outside", "address", "url", "program", "crash", "hang", "memory", "differs", "leftover",
    "traceback", "message", "beside", "broken",
)  # fmt: skip
TEMPORARY = re.compile(r"\.segcal-[0-9a-f]{16}(/|$)|(^|/)\.segcal-lock|segcal-|\.tmp$")
SENTINEL = "executed"
_QUOTED = re.compile(r"\([^()]*(\([^()]*\)[^()]*)*\)|'[^']*'|\"[^\"]*\"")
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_UNHELPFUL = re.compile(
    r"Traceback|object has no attribute|object is not|NoneType|list index|unhashable|unexpected keyword|\[Errno|"
    r"positional argument|not supported between|could not convert|invalid literal|out of bounds|broadcast"
)


def look(root: Path) -> dict[str, str]:
    """Return what is in a folder, by path: the kind of each entry and a digest of what it holds."""
    found = {}
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if not name.startswith("torchinductor_")]  # torch's, at its import
        for name in folders + files:
            path = Path(folder, name)
            found[str(path.relative_to(root))] = _entry(path)
    return found


def _entry(path: Path) -> str:
    mode = path.lstat().st_mode
    if stat.S_ISLNK(mode):
        return f"link to {path.readlink()}"
    if not stat.S_ISREG(mode):
        return "folder" if stat.S_ISDIR(mode) else "special"
    return f"file {hashlib.sha256(path.read_bytes()).hexdigest()[:16]}"


def judge(
    step: Step, root: Path, before: dict[str, str], after: dict[str, str], outcome: Outcome, own: dict[str, str]
) -> list[tuple[str, str]]:
    """Return the faults of a step, each with what happened; `own` has the command that made each path of segcal's."""
    faults = _changes(step, root, before, after, own)
    named = _named(step, root)
    faults += [(name, about) for name, about in outcome.records if not _is_named(name, about, named)]
    if any(path.endswith(f"/{SENTINEL}") or path == SENTINEL for path in set(after) - set(before)):
        faults.append(("code", "a payload wrote its mark"))
    return faults + _ending(step, outcome)


def leftovers(after: dict[str, str]) -> list[tuple[str, str]]:
    """Return the first temporary entry that stays where results are; TMPDIR is cleared by others after a kill."""
    return [("leftover", path) for path in after if TEMPORARY.search(path) and not path.startswith("tmp/")][:1]


def _changes(
    step: Step, root: Path, before: dict[str, str], after: dict[str, str], own: dict[str, str]
) -> list[tuple[str, str]]:
    replaced = {str(_inside(path, root)) for path in step.replaces}
    targets = [str(_inside(path, root)) for path in step.targets]
    command = maker(step)
    faults = []
    for path, entry in before.items():
        inside = _is_in(path, targets)
        if after.get(path) == entry or path in replaced or (inside and own.get(path) == command):
            continue
        if path in own and TEMPORARY.search(path):
            continue  # what a step that was killed left
        what = "removed" if path not in after else f"changed from {entry} to {after[path]}"
        faults.append(("lost", f"{path} {what}"))
    for path in after:
        allowed = _is_in(path, targets)
        above = any(target.startswith(path + "/") for target in targets)
        if path not in before and not allowed and not (above and after[path] == "folder"):
            kind = "leftover" if TEMPORARY.search(path) or path.startswith("tmp/") else "outside"
            if kind == "outside" or step.event is None:
                faults.append((kind, f"{path} appeared"))
    return faults


def maker(step: Step) -> str:
    """Return the command whose results a step makes: of a merge, the one that made the parts."""
    words = [""] if callable(step.run) else step.run
    return words[words.index("--") + 1] if words[0] == "merge" and "--" in words else words[0]


def _is_in(path: str, targets: Sequence[str]) -> bool:
    return any(target == "." or f"{path}/".startswith(f"{target}/") for target in targets)


def _inside(path: Path, root: Path) -> Path:
    whole = path if path.is_absolute() else root / "work" / path
    return Path(os.path.normpath(whole)).relative_to(root)


def _named(step: Step, root: Path) -> list[str]:
    """Return the URLs that a command names, itself or in a protocol that it names."""
    words = re.findall(r"'([^']*)'", step.words()) if callable(step.run) else list(step.run)
    for path in [root / "work" / word for word in words if word.endswith(".toml")]:
        words += re.findall(r"[a-z0-9+]+:/[^\s\"']*", path.read_text("utf-8", "replace")) if path.is_file() else []
    return [_plain(word) for word in words if re.match(r"[a-z0-9+]+:/", word)]


def _is_named(name: str, about: str, named: Sequence[str]) -> bool:
    """Whether a record is of an address that the command names, or of a URL below one."""
    if name == "url":
        return any(f"{_plain(about)}/".startswith(f"{url}/") for url in named)
    return name == "address" and any(re.split(r"[/:]", url.partition(":")[2])[0] in about for url in named)


def _plain(url: str) -> str:
    return re.sub(r":/+", ":", url).rstrip("/")


def _ending(step: Step, outcome: Outcome) -> list[tuple[str, str]]:
    """Return what is wrong with how a step ended and with what it said."""
    if outcome.killed:
        return [("hang", "did not end")]
    if outcome.signal is not None:
        mine = step.event is not None and outcome.signal == step.signal
        return [] if mine else [("hang" if outcome.signal in (24, 9) else "crash", f"signal {outcome.signal}")]
    last = (outcome.err.strip().splitlines() or [""])[-1]
    if "MemoryError" in outcome.err or "the memory of this machine is not enough" in outcome.err:
        return [("memory", last[:300])]
    if outcome.code not in CODES or "Traceback (most" in outcome.err:
        return [("traceback", f"exit code {outcome.code}: {last[:300]}")]
    return [("message", text) for text in (unhelpful(step, outcome),) if text]


def unhelpful(step: Step, outcome: Outcome) -> str | None:
    """Return what is wrong with what a step printed, if anything."""
    mark = _CONTROL.search(outcome.out + outcome.err)
    if mark is not None:
        return f"prints the control character {mark[0]!r}"
    if outcome.code == 2 and not (outcome.out and not callable(step.run) and step.run[0] == "check"):  # a table says it
        return _wrong_error(outcome.err)
    if outcome.code == 3:
        reasons = re.findall(r"(?m)^  (\S.*)$", outcome.err.partition("failed:\n")[2])
        return next((f"case: {text[:300]}" for text in reasons if not in_form(text)), None)
    return None


def _wrong_error(err: str) -> str | None:
    lines = err.strip().splitlines()
    errors = [line for line in lines if re.match(r"(segcal[ \w]*: )?error: ", line)]
    if len(errors) != 1:
        return f"exit code 2 with {len(errors)} errors: {err.strip()[-300:]}"
    text = errors[0].partition("error: ")[2]
    if errors[0].startswith("segcal"):  # argparse has a form of its own
        return None
    return None if in_form(text) else text[:300]


def in_form(text: str) -> bool:
    """Whether a message reads ``<name> <what it is>, but <what is needed>. <What to do>.``; some lack the middle.

    >>> in_form("k is 3, but 2 is needed. Use 2."), in_form("unhashable type: 'list'")
    (True, False)
    """
    bare = _QUOTED.sub("", text)
    ends = text.rstrip().endswith((".", "]", "`", ")", '"', "'"))
    return ends and len(text) < 2000 and not _UNHELPFUL.search(bare) and bool(re.search(r", but |\. [A-Z]", text))


def worst(faults: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return faults without repetitions, the worst first."""
    return sorted(dict.fromkeys(faults), key=lambda fault: FAULTS.index(fault[0]))
