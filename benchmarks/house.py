"""Measure the shape of the package: today's values beside the bounds that tests hold them to.

    python -m benchmarks.house [--list] [--no-runs] [--write]

Bounds stand in ``benchmarks/house.toml``; no number may be larger. With ``--write`` today's values become the bounds.

Counted of every folder of ``src/segcal`` (and of the files beside them, as `modules`):

- **lines, files**: of Python.
- **untyped**: ``dict[str, Any]`` and ``Mapping[str, Any]``.
- **kinds**: where code asks for the kind of a model or a task: ``isinstance`` of :data:`KINDS`, ``regions is None``.
- **public**: functions and classes of modules that do not begin with an underscore; **classes**: all of them.

Counted of the whole package:

- **importers**: modules (not packages) that exactly one other module of the package imports; the second number
  leaves out those that only the `__init__` of their own folder imports: a registry is meant to be the only one.
- **touched**: files for a new member of each registry: its own, its test, the changelog, every file of src that names
  all members of its registry (the registry itself among them), and its page of the documentation unless the table there
  is made from the registry (what else is written about a member there is not counted).
- **names_twice**: class names defined more than once.
- **renames**: calls of ``Path.replace``, ``Path.rename`` and ``os.replace``: what writes beside and renames.
- **ladders**: ``isinstance`` with a class of calibrators in fitting, where it decides something: an ``assert`` that
  tells the type checker what the registry has decided is none.

Counted in small runs on made-up files:

- **walks**: files that a reader of a command comes through. Of all functions that are actually called
  (`sys.setprofile`), those count that call on into another file. The lowest layers, kernels and the other commands are
  left out, and members of one registry count as one file. It is the second run in one process, so that what happens
  once on import does not count.
- **opens**: how often a command opens a file of a case, at most; once is enough.

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
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import numpy as np

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "segcal"
BOUNDS = Path(__file__).with_name("house.toml")
COLUMNS = ("lines", "files", "untyped", "kinds", "public", "classes")
# The files of src that lie in no folder of the package.
LOOSE = "modules"
# Classes of models and of tasks that are told apart by branches.
KINDS = {"PerRegion", "RegionView", "FolderTask", "EmbeddedTask"}
# Where a member is listed: module and name of the registry, page of the documentation and mark of its table.
REGISTRIES = {
    "calibrator": ("segcal.calibrators", "CALIBRATORS", "calibrators.md", "calibrators"),
    "metric": ("segcal.metrics", "METRICS", "metrics.md", "metrics"),
    "format": ("segcal.cases.formats", "FORMATS", "data-format.md", "formats"),
    "loss": ("segcal.losses", "LOSSES", "losses.md", "losses"),
    "study": ("segcal.studies", "STUDIES", "protocol.md", "studies"),
}
READ = ("predictions", "--kind", "logits")
LABELLED = ("predictions", "labels", "--kind", "logits")
CALLS = {
    "fit of members": ("fit", "predictions", "others", "labels", "--kind", "logits", "-o", "both"),
    "fit": ("fit", *LABELLED, "-o", "calibrator"),
    "evaluate": ("evaluate", *LABELLED, "--calibrator", "calibrator"),
    "apply": ("apply", "calibrator", *READ, "-o", "calibrated"),
    "trust": ("trust", "calibrator", *READ, "--level", "0.8", "-o", "trusted"),
    "benchmark": ("benchmark", "protocol.toml", "-o", "results"),
}
WALKED = ("benchmark", "fit", "evaluate")
OPENED = ("fit", "evaluate", "apply", "trust", "fit of members")
# Looked up on a walk, and not walked through.
LOWEST = re.compile(r"(names|version|errors|types|atomic|parent|checks|numerics|target|documents)\.py|kernels/")


class Counted(NamedTuple):
    """Some numbers of the whole package, and what was counted."""

    values: tuple[int, ...]
    found: tuple[str, ...] = ()


def packages() -> dict[str, dict[str, int]]:
    """Return the numbers of every folder of the package."""
    table: dict[str, dict[str, int]] = {}
    for path in sorted(SOURCE.parent.rglob("*.py")):
        inside = path.is_relative_to(SOURCE) and len(path.relative_to(SOURCE).parts) > 1
        folder = path.relative_to(SOURCE).parts[0] if inside else LOOSE
        own = table.setdefault(folder, dict.fromkeys(COLUMNS, 0))
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
        defined = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
        own["lines"] += len(text.splitlines())
        own["files"] += 1
        own["untyped"] += len(re.findall(r"\b(?:dict|Mapping)\[str, Any\]", text))
        own["kinds"] += sum(map(_asks_for_kind, ast.walk(tree)))
        own["public"] += sum(not node.name.startswith("_") for node in defined)
        own["classes"] += sum(isinstance(node, ast.ClassDef) for node in ast.walk(tree))
    return table


def _asks_for_kind(node: ast.AST) -> bool:
    if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Is | ast.IsNot):
        name = node.left.attr if isinstance(node.left, ast.Attribute) else getattr(node.left, "id", "")
        return name == "regions" and ast.unparse(node.comparators[0]) == "None"
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance":
        return bool({part.id for part in ast.walk(node.args[1]) if isinstance(part, ast.Name)} & KINDS)
    return False


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


def importers() -> Counted:
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
    return Counted((len(found), len(beyond)), beyond)


def names_twice() -> Counted:
    """Count class names that are used twice."""
    classes = Counter(
        node.name for tree in trees().values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)
    )
    twice = tuple(f"{name} {count}" for name, count in classes.items() if count > 1)
    return Counted((len(twice),), twice)


def renames() -> Counted:
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
    return Counted((len(found),), tuple(found))


def ladders() -> Counted:
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
    return Counted((len(found),), tuple(found))


def touched() -> Counted:
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
    return Counted(tuple(values), tuple(shown))


def _names_in(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.Name):
        yield node.id


def walks() -> Counted:
    """Count the files that a reader of some commands comes through."""
    with _small_world():
        visited = {command: _visited(CALLS[command]) for command in ("fit", "evaluate", "benchmark")}
    shown = tuple(f"{command}: {', '.join(sorted(visited[command]))}" for command in WALKED)
    return Counted(tuple(len(visited[command]) for command in WALKED), shown)


def opens() -> Counted:
    """Count how often some commands open a file of a case."""
    with _small_world():
        found = {command: _opened(CALLS[command]) for command in OPENED}
    shown = tuple(f"{command}: {count} times {name}" for command in OPENED for name, count in found[command].items())
    return Counted(tuple(max(found[command].values(), default=0) for command in OPENED), shown)


# The files that are opened while somebody looks: an audit hook stays for ever, so there is one, and it seldom looks.
_SEEN: list[str] | None = None


def _listen(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and _SEEN is not None and isinstance(arguments[0], str | os.PathLike):
        _SEEN.append(os.fspath(arguments[0]))


def _opened(arguments: Sequence[str]) -> Counter[str]:
    """Return how often a command opens each file of a case."""
    global _SEEN
    if not hasattr(_listen, "added"):
        sys.addaudithook(_listen)
        _listen.added = True  # type: ignore[attr-defined]
    _SEEN = []
    try:
        _run(arguments)
        names = ["/".join(Path(path).parts[-2:]) for path in _SEEN]
    finally:
        _SEEN = None
    return Counter(name for name in names if re.fullmatch(r"(predictions|others|labels)/case_\d+\.npy", name))


@contextlib.contextmanager
def _small_world() -> Iterator[None]:
    """Work in a new folder with small cases and a protocol."""
    with tempfile.TemporaryDirectory() as place, contextlib.chdir(place):
        _make_files()
        yield


def _make_files() -> None:
    """Write small cases and a protocol into the working folder."""
    rng = np.random.default_rng(0)
    for name in ("predictions", "others", "labels"):
        Path(name).mkdir()
    for number in range(8):
        logits = 4 * rng.normal(size=(3, 20, 24)).astype("float32")
        np.save(f"predictions/case_{number}.npy", logits)
        others = logits + np.random.default_rng([1, number]).normal(size=logits.shape)
        np.save(f"others/case_{number}.npy", others.astype("float32"))
        np.save(f"labels/case_{number}.npy", (logits / 3 + rng.gumbel(size=logits.shape)).argmax(0).astype("uint8"))
    Path("protocol.toml").write_text(
        "repeats = 1\npipelines = ["
        '{pooling = "single", calibrator = "identity"}, {pooling = "single", calibrator = "ts"}]\n'
        "split = {cal = 3, val = 2}\nbootstrap = {replicates = 20}\nstudies = []\n"
        'tasks = [{name = "blobs", members = ["predictions"], labels = "labels", kind = "logits"}]\n',
        encoding="utf-8",
    )


def _visited(arguments: Sequence[str]) -> set[str]:
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


def _run(arguments: Sequence[str]) -> None:
    from segcal.cli import main

    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try:
            main(list(arguments))
        except SystemExit as stopped:
            if stopped.code:
                raise RuntimeError(f"{' '.join(arguments)} ended with {stopped.code}: {printed.getvalue()}") from None


# What is counted of the whole package, without a run and with one.
STATIC: tuple[Callable[[], Counted], ...] = (importers, touched, names_twice, renames, ladders)
RUNS: tuple[Callable[[], Counted], ...] = (walks, opens)


def read_bounds() -> dict[str, Any]:
    """Return the bounds: `packages` by folder and column, `whole` by what is counted."""
    return tomllib.loads(BOUNDS.read_text(encoding="utf-8"))


def write_bounds(table: Mapping[str, Mapping[str, int]], whole: Mapping[str, Sequence[int]]) -> None:
    """Write a new file of bounds."""
    lines = ["# Bounds of `python -m benchmarks.house`, which says what is counted; --write takes the values of today."]
    lines += ["", "[packages]"]
    for folder, own in table.items():
        lines.append(f"{folder} = {{ {', '.join(f'{name} = {value}' for name, value in own.items())} }}")
    lines += ["", "[whole]", *(f"{name} = {list(values)}" for name, values in whole.items())]
    BOUNDS.write_text("\n".join(lines) + "\n", encoding="utf-8")


def print_tables(table: Mapping[str, Mapping[str, int]], whole: Mapping[str, Counted]) -> None:
    """Print today's values beside the bounds, as two tables in Markdown."""
    bounds = read_bounds()
    print(f"| today (bound) | {' | '.join(COLUMNS)} |\n|--{'|--:' * len(COLUMNS)}|")
    for folder, own in table.items():
        known = bounds["packages"].get(folder, {})
        print(f"| {folder} | {' | '.join(f'{own[name]:,} ({known.get(name, 0):,})' for name in COLUMNS)} |")
    sums = {name: sum(own[name] for own in table.values()) for name in COLUMNS}
    known = {name: sum(own[name] for own in bounds["packages"].values()) for name in COLUMNS}
    print(f"| **all** | {' | '.join(f'{sums[name]:,} ({known[name]:,})' for name in COLUMNS)} |")
    print("\n| | today | bound |\n|--|--:|--:|")
    for name, counted in whole.items():
        now, bound = (", ".join(map(str, values)) for values in (counted.values, bounds["whole"].get(name, ())))
        print(f"| {name} | {now} | {bound} |")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="name what was counted")
    parser.add_argument("--no-runs", action="store_true", help="leave out what needs a run of the commands")
    parser.add_argument("--write", action="store_true", help="take the values of today as bounds")
    options = parser.parse_args(arguments)
    table = packages()
    whole = {one.__name__: one() for one in (*STATIC, *(() if options.no_runs and not options.write else RUNS))}
    if options.write:
        write_bounds(table, {name: counted.values for name, counted in whole.items()})
    print_tables(table, whole)
    for name, counted in whole.items() if options.list else ():
        print(f"\n{name}:", *(f"  {line}" for line in counted.found), sep="\n")


if __name__ == "__main__":
    main()
