"""The house keeps its shape: bounds that are reached are not given up again."""

import ast
from functools import cache

import pytest

from benchmarks import house

HINT = "python -m benchmarks.house --list names what was counted; a bound that must move: benchmarks/house.toml"


@pytest.fixture(scope="module", autouse=True)
def parsed_once():
    """Every measure parses the package again; here they share the trees."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(house.ast, "parse", cache(ast.parse))
        yield


def test_no_number_of_a_package_grows():
    bounds = house.read_bounds()["packages"]
    grown = {
        f"{folder}: {name}": (value, bounds.get(folder, {}).get(name))
        for folder, own in house.packages().items()
        for name, value in own.items()
        if value > bounds.get(folder, {}).get(name, 0)
    }
    assert not grown, f"value and bound: {grown}. {HINT}"


@pytest.mark.parametrize("measure", [*house.STATIC, *house.RUNS], ids=lambda measure: measure.__name__)
def test_no_number_of_the_whole_grows(measure):
    counted, bounds = measure(), house.read_bounds()["whole"][measure.__name__]
    for value, bound in zip(counted.values, bounds, strict=True):
        assert value <= bound, f"{counted.values} is beyond {bounds}: {counted.found}. {HINT}"
    if measure is house.walks:
        for value, command, line in zip(counted.values, house.WALKED, counted.found, strict=True):
            assert value > 5
            assert line.startswith(f"{command}: ")
            assert f"cli/{command}.py" in line
    if measure is house.opens:
        assert set(counted.values) == {1}
        assert any(line.endswith("labels/case_0.npy") for line in counted.found)


@pytest.fixture
def small_house(tmp_path, monkeypatch):
    """A package of a few files, whose numbers are known."""
    files = {
        "__init__.py": "",
        "a/__init__.py": "from segcal.a.one import One\nALL = {'one': One}\n",
        "a/one.py": "from segcal.b import other\nclass One: ...\ndef _hidden(): ...\n",
        "b.py": "from pathlib import Path\ndef other(): Path('x').replace('y'); 'a'.replace('b', 'c')\n",
        "report/page.py": (
            "class One: ...\ndef f(x: dict[str, Any], y: Mapping[str, Any]):\n    import segcal.a\n"
            "    return isinstance(x, PerRegion) or x.regions is not None or isinstance(y, dict) or y is None\n"
        ),
    }
    for name, text in files.items():
        path = tmp_path / "src" / "segcal" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.setattr(house, "SOURCE", tmp_path / "src" / "segcal")
    monkeypatch.setattr(house, "BOUNDS", tmp_path / "house.toml")


@pytest.mark.usefixtures("small_house")
def test_what_is_counted_is_what_is_there():
    table = house.packages()
    assert {folder: tuple(own.values()) for folder, own in table.items()} == {
        "modules": (2, 2, 0, 0, 1, 0),
        "a": (5, 2, 0, 0, 1, 1),
        "report": (4, 1, 2, 2, 2, 1),
    }
    assert house.importers().values == (2, 1)  # b by a.one; a.one by its registry
    assert house.names_twice() == ((1,), ("One 2",))
    assert house.renames() == ((1,), ("segcal.b:2",))
    house.write_bounds(table, {"importers": (2, 1)})
    assert house.read_bounds() == {"packages": table, "whole": {"importers": [2, 1]}}


def test_imports_are_found_in_functions_and_by_either_form():
    tree = ast.parse(
        "import segcal.x\ndef f():\n    from segcal import y\n    from segcal.z import name\n    import os\n"
    )
    assert house.imported(tree, {"segcal.x": 0, "segcal.y": 0, "segcal.z": 0}) == {"segcal.x", "segcal.y", "segcal.z"}
