import json

import numpy as np
import pytest


@pytest.fixture
def masks(tmp_path, rng, monkeypatch):
    """Twenty labelled discs and two new ones, in pixels."""
    monkeypatch.chdir(tmp_path)
    row, column = np.indices((21, 25))
    for folder, count in (("p", 20), ("l", 20), ("new", 2)):
        (tmp_path / folder).mkdir()
        for number in range(count):
            radius = 5 + (0.0 if folder == "l" else float(rng.normal()))
            disc = (np.hypot(row - 10, column - 12) <= radius).astype(np.uint8)
            np.save(tmp_path / folder / f"patient{number // 2}_{number}.npy", disc)
    return tmp_path


def test_margins_are_learned_and_masks_grown(masks, run):
    done = run("margins", "fit", "p", "--labels", "l", "-o", "m.json", "--class-names", "none,disc")
    assert done.code == 0, done.err
    assert "outer, voxels" in done.out
    assert "in 0.9 of new cases or more, the outer mask covers 0.95 of the structure or more" in done.out
    known = json.loads((masks / "m.json").read_text())["structures"][0]
    assert known["name"] == "disc"
    done = run("margins", "apply", "new", "--margins", "m.json", "-o", "out", "--json")
    assert done.code == 0, done.err
    assert [row["case"] for row in done.document["volumes"]] == ["patient0_0", "patient0_1"]
    levels = np.load(masks / "out" / "patient0_0" / "disc.npy")
    np.testing.assert_array_equal(levels >= 2, np.load(masks / "new" / "patient0_0.npy") == 1)
    assert {1, 2, 3} <= set(np.unique(levels))
    shown = run("margins", "apply", "new", "--margins", "m.json", "-o", "out").out
    assert "patient0_1" in shown
    assert "2 cases written to out" in shown


def test_groups_and_shares_on_average(masks, run):
    call = ("margins", "fit", "p", "--labels", "l", "-o", "m.json", "--json")
    assert run(*call, "--groups", r"(patient\d+)_").document["draws"] == 10
    found = run(*call, "--on-average", "--share", "0.8").document
    assert (found["draws"], found["on_average"], found["share"]) == (20, True, 0.8)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["fit", "p", "-o", "m.json"], "--labels is for fit and --margins for apply, but each needs its own"),
        (["apply", "p", "-o", "out"], "--labels is for fit and --margins for apply"),
        (["apply", "p", "-o", "out", "--margins", "none.json"], "none.json is missing, but it is needed"),
        (["apply", "p", "-o", "p", "--margins", "l/patient0_0.npy"], "p is one of the inputs"),
        (["fit", "p", "--labels", "l", "-o", "p/m.json"], "p/m.json is among the files of p, which are read"),
        (["fit", "p", "--labels", "l", "-o", "notes.json"], "exists and was not written by this command"),
        (["fit", "p", "--labels", "l", "-o", "m.json", "--level", "0.99"], "but level 0.99 needs 99"),
    ],
)
def test_mistakes_are_one_sentence(options, message, masks, run):
    (masks / "notes.json").write_text("{}")
    done = run("margins", *options)
    assert done.code == 2
    assert message in done.err
    assert (masks / "notes.json").read_text() == "{}"
    assert not (masks / "out").exists()


def test_a_case_without_a_label_is_listed(masks, run):
    (masks / "l" / "patient3_7.npy").unlink()
    done = run("margins", "fit", "p", "--labels", "l", "-o", "m.json")
    assert done.code == 3
    assert "patient3_7: " in done.err
    assert run("margins", "fit", "p", "--labels", "l", "-o", "m.json", "--strict").code == 2
