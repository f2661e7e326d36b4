"""Measure the shape of the package: the table of the design's house.md, today's values beside the goals.

    python -m benchmarks.house [--list] [--no-walks]

What is counted:

- **lines, files**: all Python files in src.
- **one importer**: modules (not packages) that exactly one other module of the package imports; the second number
  leaves out those that only the `__init__` of their own folder imports: a registry is meant to be the only one.
- **untyped**: ``dict[str, Any]`` and ``Mapping[str, Any]`` in benchmark, report and studies.
- **walks**: files that a reader of a command comes through. Of all functions that are actually called
  (`sys.setprofile`) in a small run on made-up files, those count that call on into another file. The lowest layers,
  kernels and the other commands are left out, and members of one registry count as one file. It is the second run in
  one process, so that what happens once on import does not count.
- **files for a new member**: its own, its test, the changelog, every file of src that names all members of its registry
  (the registry itself among them), and its page of the documentation unless the table there is made from the registry
  (what else is written about a member there is not counted).
- **class names**: defined more than once; **public names**: functions and classes of modules that do not begin with an
  underscore.
- **write beside, rename**: calls of ``Path.replace``, ``Path.rename`` and ``os.replace``.
- **ladders**: ``isinstance`` with a class of calibrators in fitting, where it decides something: an ``assert`` that
  tells the type checker what the registry has decided is none.

`--list` names what was counted.
"""

import argparse
import ast
import contextlib
import importlib
import inspect
import io
import os
import re
import shutil
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "segcal"
OUTER = ("benchmark", "report", "studies")
# Where a member is listed: module and name of the registry, page of the documentation and mark of its table.
REGISTRIES = {
    "calibrator": ("segcal.calibrators", "CALIBRATORS", "calibrators.md", "calibrators"),
    "metric": ("segcal.metrics", "METRICS", "metrics.md", "metrics"),
    "format": ("segcal.cases.formats", "FORMATS", "data-format.md", "formats"),
    "loss": ("segcal.losses", "LOSSES", "losses.md", "losses"),
    "study": ("segcal.studies", "STUDIES", "protocol.md", "studies"),
}
COMMANDS = ("benchmark", "fit", "evaluate")
# Looked up on a walk, and not walked through.
LOWEST = re.compile(r"(names|version|errors|types|atomic|parent|checks|numerics|target|documents)\.py|kernels/")


@dataclass(frozen=True)
class Measured:
    """One line of the table: a value, or several, what was counted, and the goal."""

    title: str
    values: tuple[int, ...]
    goal: str
    found: tuple[str, ...] = ()

    def row(self) -> str:
        """Return the line in Markdown."""
        return f"| {self.title} | {', '.join(f'{value:,}' for value in self.values)} | {self.goal} |"


def trees() -> dict[str, ast.Module]:
    """Return the parsed modules of the package by their dotted name."""
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        name = ".".join(("segcal", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__")
        found[name] = ast.parse(path.read_text(encoding="utf-8"))
    return found


def imported(tree: ast.Module, known: Mapping[str, Any]) -> set[str]:
    """Return the modules of the package that a module imports, wherever it does."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= {name if name in known else str(node.module) for name in inner}
    return names & set(known)


def size() -> Iterator[Measured]:
    """Measure lines and files."""
    files = sorted(SOURCE.parent.rglob("*.py"))
    counts = [len(path.read_text(encoding="utf-8").splitlines()) for path in files]
    longest = sorted(zip(counts, files, strict=True), reverse=True)[:20]
    shown = tuple(f"{count} {path.relative_to(SOURCE.parent)}" for count, path in longest)
    yield Measured("lines in src (Python)", (sum(counts),), "at most 22,000", shown)
    yield Measured("files in src", (len(files),), "about 220")


def importers() -> Iterator[Measured]:
    """Count the modules with one importer."""
    modules = trees()
    packages = {path.parent for path in SOURCE.rglob("__init__.py")}
    by = {name: imported(tree, modules) - {name} for name, tree in modules.items()}
    found = []
    for name in modules:
        users = [other for other, names in by.items() if name in names]
        folder = SOURCE.joinpath(*name.split(".")[1:])
        if folder not in packages and len(users) == 1:
            found.append((name, users[0]))
    beyond = tuple(f"{name} <- {user}" for name, user in found if user != name.rpartition(".")[0])
    title = "modules with exactly one importer, without members of registries"
    yield Measured(title, (len(found), len(beyond)), "at most 50", beyond)


def untyped() -> Iterator[Measured]:
    """Count untyped dictionaries in the outer half."""
    found = {}
    for path in (path for part in OUTER for path in (SOURCE / part).rglob("*.py")):
        count = len(re.findall(r"\b(?:dict|Mapping)\[str, Any\]", path.read_text(encoding="utf-8")))
        if count:
            found[str(path.relative_to(SOURCE))] = count
    shown = tuple(f"{count} {name}" for name, count in found.items())
    title = "`dict[str, Any]`, `Mapping[str, Any]` in benchmark, report, studies"
    yield Measured(title, (sum(found.values()),), "at most 20", shown)


def names() -> Iterator[Measured]:
    """Count class names used twice, and public names."""
    classes: Counter[str] = Counter()
    public = []
    for module, tree in trees().items():
        classes.update(node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
        defined = (node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef))
        public += [f"{module}.{node.name}" for node in defined if not node.name.startswith("_")]
    twice = tuple(f"{name} {count}" for name, count in classes.items() if count > 1)
    yield Measured("class names used twice or more", (len(twice),), "0", twice)
    yield Measured("public functions and classes of modules", (len(public),), "what `__all__` lists; the rest private")


def renames() -> Iterator[Measured]:
    """Count what writes beside and renames."""
    found = []
    for module, tree in trees().items():
        for node in ast.walk(tree):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            owner = node.func.value.id if isinstance(node.func.value, ast.Name) else ""
            # str.replace and datetime.replace have two arguments or names; Path.replace has one.
            path = node.func.attr in ("replace", "rename") and len(node.args) == 1 and not node.keywords
            if path or (owner == "os" and node.func.attr in ("replace", "rename")):
                found.append(f"{module}:{node.lineno}")
    yield Measured('hand-written "write beside, rename" blocks', (len(found),), "1", tuple(found))


def ladders() -> Iterator[Measured]:
    """Count where fitting asks which calibrator it has."""
    from segcal.calibrators import Calibrator

    found = []
    for module, tree in trees().items():
        if not module.startswith("segcal.fitting"):
            continue
        members = vars(importlib.import_module(module))
        stated = {id(part) for node in ast.walk(tree) if isinstance(node, ast.Assert) for part in ast.walk(node)}
        for node in ast.walk(tree):
            if (
                id(node) not in stated
                and isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id == "isinstance"
            ):
                asked = {part.id for part in ast.walk(node.args[1]) if isinstance(part, ast.Name)}
                kinds = [members.get(name) for name in asked]
                if any(
                    inspect.isclass(kind) and issubclass(kind, Calibrator) for kind in kinds if kind is not Calibrator
                ):
                    found.append(f"{module}:{node.lineno}")
    yield Measured("isinstance of a calibrator in fitting", (len(found),), "0", tuple(found))


def touched() -> Iterator[Measured]:
    """Count the files that a new member of each registry touches."""
    named = {
        path: {value for node in ast.walk(ast.parse(path.read_text("utf-8"))) for value in _names_in(node)}
        for path in sorted(SOURCE.rglob("*.py"))
    }
    values, shown = [], []
    for kind, (module, registry, page, mark) in REGISTRIES.items():
        members = getattr(importlib.import_module(module), registry)
        listing = [
            path.relative_to(SOURCE.parents[1]).as_posix()
            for path, found in named.items()
            if all({key, getattr(member, "__name__", key)} & found for key, member in members.items())
        ]
        if f"<!-- table: {mark} -->" not in (ROOT / "docs" / page).read_text(encoding="utf-8"):
            listing.append(f"docs/{page}")
        values.append(3 + len(listing))
        shown.append(f"{kind}: its own, its test, CHANGELOG.md, {', '.join(listing)}")
    yield Measured(f"files for a new {', '.join(REGISTRIES)}", tuple(values), "4 each", tuple(shown))


def _names_in(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.Name):
        yield node.id


def walks() -> Iterator[Measured]:
    """Count the files that three commands visit."""
    visited = {}
    with tempfile.TemporaryDirectory() as place, contextlib.chdir(place):
        _make_files()
        calls = {
            "benchmark": ["benchmark", "protocol.toml", "-o", "results"],
            "fit": ["fit", "predictions", "labels", "--kind", "logits", "-o", "calibrator"],
            "evaluate": ["evaluate", "predictions", "labels", "--kind", "logits", "--calibrator", "calibrator"],
        }
        for command in ("fit", "evaluate", "benchmark"):
            visited[command] = _visited(calls[command])
    shown = tuple(f"{command}: {', '.join(sorted(visited[command]))}" for command in COMMANDS)
    title = f"files visited by segcal {', '.join(COMMANDS)}"
    yield Measured(title, tuple(len(visited[command]) for command in COMMANDS), "35, 28, 20", shown)


def _make_files() -> None:
    """Write small cases and a protocol into the working folder."""
    rng = np.random.default_rng(0)
    for name in ("predictions", "labels"):
        Path(name).mkdir()
    for number in range(8):
        logits = 4 * rng.normal(size=(3, 20, 24)).astype("float32")
        np.save(f"predictions/case_{number}.npy", logits)
        np.save(f"labels/case_{number}.npy", (logits / 3 + rng.gumbel(size=logits.shape)).argmax(0).astype("uint8"))
    Path("protocol.toml").write_text(
        "repeats = 1\npipelines = ["
        '{pooling = "single", calibrator = "identity"}, {pooling = "single", calibrator = "ts"}]\n'
        "split = {cal = 3, val = 2}\nbootstrap = {replicates = 20}\nstudies = []\n"
        'tasks = [{name = "blobs", members = ["predictions"], labels = "labels", kind = "logits"}]\n',
        encoding="utf-8",
    )


def _visited(arguments: list[str]) -> set[str]:
    """Return the files of the package that a command comes through, on its second run."""
    _run(arguments)
    if "-o" in arguments:
        shutil.rmtree(arguments[arguments.index("-o") + 1])
    base, seen = f"{SOURCE}{os.sep}", set()

    def look(frame: FrameType, event: str, _: object) -> None:
        # Bodies of modules and classes have no fast local variables; functions have.
        code = frame.f_code
        if event != "call" or not code.co_flags & inspect.CO_OPTIMIZED or not code.co_filename.startswith(base):
            return
        caller = frame.f_back
        while caller is not None and not caller.f_code.co_filename.startswith(base):
            caller = caller.f_back
        names = [one.f_code.co_filename.removeprefix(base) for one in (caller, frame) if one is not None]
        if len(set(names)) == 2 and not any(LOWEST.match(name) for name in names):
            seen.add(_member(names[0]))

    threading.setprofile(look)
    sys.setprofile(look)
    try:
        _run(arguments)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    from segcal.cli import COMMANDS

    others = {f"cli/{file}.py" for file, _ in COMMANDS.values()} - {f"cli/{COMMANDS[arguments[0]][0]}.py"}
    return seen - others


def _member(name: str) -> str:
    """Return one name for all members of a registry, and that of any other file."""
    folder, _, file = name.rpartition("/")
    registry = f"segcal.{folder.replace('/', '.')}" in {module for module, *_ in REGISTRIES.values()}
    return f"{folder}/MEMBER" if registry and file not in ("__init__.py", "base.py") else name


def _run(arguments: list[str]) -> None:
    from segcal.cli import main

    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try:
            main(arguments)
        except SystemExit as stopped:
            if stopped.code:
                raise RuntimeError(f"{' '.join(arguments)} ended with {stopped.code}: {printed.getvalue()}") from None


STATIC: tuple[Callable[[], Iterator[Measured]], ...] = (size, importers, untyped, touched, names, renames, ladders)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="name what was counted")
    parser.add_argument("--no-walks", action="store_true", help="leave out what needs a run of the commands")
    options = parser.parse_args(arguments)
    measured = [one for measure in (*STATIC, *(() if options.no_walks else (walks,))) for one in measure()]
    print("| | today | goal |\n|--|--:|--:|")
    print(*(one.row() for one in measured), sep="\n")
    for one in measured if options.list else ():
        print(f"\n{one.title}:", *(f"  {line}" for line in one.found), sep="\n")


if __name__ == "__main__":
    main()
