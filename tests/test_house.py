"""The house keeps its shape: bounds that are reached are not given up again."""

import ast

import pytest

from benchmarks import house

# The largest value of each number of the table of `benchmarks/house.py` that needs no run; lower them as it improves.
BOUNDS = {
    house.size: ((51_020,), (374,)),
    house.importers: ((108, 62),),
    house.untyped: ((10,),),
    house.touched: ((4, 4, 4, 4, 4),),
    house.names: ((0,), (1500,)),
    house.renames: ((5,),),
    house.ladders: ((0,),),
}
WALKS = (53, 48, 33)


@pytest.mark.parametrize("measure", house.STATIC, ids=lambda measure: measure.__name__)
def test_no_number_of_the_table_grows(measure):
    for measured, bounds in zip(measure(), BOUNDS[measure], strict=True):
        for value, bound in zip(measured.values, bounds, strict=True):
            assert value <= bound, (measured.title, value, measured.found)


@pytest.fixture
def small_house(tmp_path, monkeypatch):
    """A package of a few files, whose numbers are known."""
    files = {
        "__init__.py": "",
        "a/__init__.py": "from segcal.a.one import One\nALL = {'one': One}\n",
        "a/one.py": "from segcal.b import other\nclass One: ...\ndef _hidden(): ...\n",
        "b.py": "from pathlib import Path\ndef other(): Path('x').replace('y'); 'a'.replace('b', 'c')\n",
        "report/page.py": "class One: ...\ndef f(x: dict[str, Any], y: Mapping[str, Any]): import segcal.a\n",
    }
    for name, text in files.items():
        path = tmp_path / "src" / "segcal" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.setattr(house, "SOURCE", tmp_path / "src" / "segcal")


@pytest.mark.usefixtures("small_house")
def test_what_is_counted_is_what_is_there():
    def of(measure):
        return [measured.values for measured in measure()]

    assert of(house.size) == [(9,), (5,)]
    assert of(house.importers) == [(2, 1)]  # b by a.one; a.one by its registry
    assert of(house.untyped) == [(2,)]
    assert of(house.names) == [(1,), (4,)]
    assert [measured.found for measured in house.renames()] == [("segcal.b:2",)]


def test_imports_are_found_in_functions_and_by_either_form():
    tree = ast.parse(
        "import segcal.x\ndef f():\n    from segcal import y\n    from segcal.z import name\n    import os\n"
    )
    assert house.imported(tree, {"segcal.x": 0, "segcal.y": 0, "segcal.z": 0}) == {"segcal.x", "segcal.y", "segcal.z"}


def test_the_walks_of_three_commands_are_found():
    (measured,) = house.walks()
    assert len(measured.values) == 3
    for value, most, command, line in zip(measured.values, WALKS, house.COMMANDS, measured.found, strict=True):
        assert 5 < value <= most, line
        assert line.startswith(f"{command}: ")
        assert f"cli/{command}.py" in line
