"""The shape of the package: imports point one way at two folder levels, names differ, files are short."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "segcal"
MOST_LINES = 400

# A part may import parts of earlier levels and itself, never its own level or a later one.
LEVELS = (
    {"names", "version"},
    {"errors"},
    {"types"},
    {"atomic", "arguments", "memory", "parent", "regions"},
    {"checks", "numerics", "target", "documents"},
    {"kernels", "resample", "raters"},
    {"pooling"},
    {"calibrators", "statistics", "losses", "cases"},
    {"metrics", "fitting"},
    {"summary", "audit", "applying"},
    {"evaluation"},
    {"evaluate"},
    {"trust"},
    {"decisions"},
    {"report"},
    {"benchmark"},
    {"studies"},
    {"integrations", "scale"},
    {"demo"},
    {"segcal"},  # the public names, which only the command line may use
    {"cli"},
)
LEVEL = {part: number for number, level in enumerate(LEVELS) for part in level}

FILES = sorted(path.relative_to(SOURCE) for path in SOURCE.rglob("*.py"))


def dotted(file):
    return ".".join(("segcal", *file.with_suffix("").parts)).removesuffix(".__init__")


def imported(path):
    """Return the modules that a file imports from the package, wherever in it, as dotted names."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            folder = SOURCE.joinpath(*(node.module or "").split(".")[1:])
            for alias in node.names:  # a module of a package, or a name in one
                inside = (folder / f"{alias.name}.py").exists() or (folder / alias.name / "__init__.py").exists()
                found.append(f"{node.module}.{alias.name}" if inside else node.module)
    return {name for name in found if name == "segcal" or name.startswith("segcal.")}


GRAPH = {dotted(file): imported(SOURCE / file) - {dotted(file)} for file in FILES}


def part_of(file):
    return file.parts[0].removesuffix(".py")


def test_imports_point_one_way():
    for file in FILES[1:]:  # the first is that of the public names
        own = part_of(file)
        assert own in LEVEL, f"{own} is not in the table of levels"
        for name in GRAPH[dotted(file)]:
            part = name.split(".")[1] if "." in name else "segcal"
            assert part == own or LEVEL[part] < LEVEL[own], f"{file} imports {name}, but {own} stands below {part}"


def check_no_circle(graph):
    """Follow the imports of every node, and fail where they come back."""
    done, active = set(), []

    def visit(name):
        if name in done or name not in graph:
            return
        assert name not in active, f"imports go round: {' -> '.join([*active[active.index(name) :], name])}"
        active.append(name)
        for other in sorted(graph[name]):
            visit(other)
        active.pop()
        done.add(name)

    for name in sorted(graph):
        visit(name)


def test_no_two_files_import_each_other_by_way_of_others():
    check_no_circle({name: others - {"segcal"} for name, others in GRAPH.items()})


@pytest.mark.parametrize("package", sorted({dotted(f.parent / "__init__.py") for f in FILES if len(f.parts) > 1}))
def test_the_folders_and_files_of_a_package_stand_in_an_order(package):
    """A subfolder counts as one: what it needs of its neighbours stands below it, and nothing of that needs it."""
    depth = package.count(".") + 1

    def child(name):
        return ".".join(name.split(".")[: depth + 1])

    graph = {}
    for name, others in GRAPH.items():
        if name == package or name.startswith(f"{package}."):
            inner = {child(other) for other in others if other.startswith(f"{package}.")}
            graph.setdefault(child(name), set()).update(inner - {child(name)})
    check_no_circle(graph)


def test_the_wheel_holds_the_tool_alone():
    """Training, peers and the study of losses stand beside the package and use it, never the other way round."""
    for file in FILES:
        text = (SOURCE / file).read_text(encoding="utf-8")
        assert not re.search(r"^\s*(from|import) (benchmarks|paper)\b", text, flags=re.MULTILINE), file


def test_no_file_is_named_after_nothing():
    for file in FILES:
        for part in (file.stem, *file.parts[:-1]):
            assert part not in {"utils", "util", "helpers", "helper", "common", "core", "misc"}, file


def test_files_stay_short_enough_to_read():
    lines = {str(file): len((SOURCE / file).read_text(encoding="utf-8").splitlines()) for file in FILES}
    assert not {file: count for file, count in lines.items() if count > MOST_LINES}


def test_a_circle_is_found_and_shown():
    with pytest.raises(AssertionError, match="imports go round: b -> c -> b"):
        check_no_circle({"a": {"b"}, "b": {"c"}, "c": {"b"}})
    check_no_circle({"a": {"b", "c"}, "b": {"c"}})
