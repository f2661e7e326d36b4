"""``segcal decide``, ``monitor``, ``adapt``, ``view`` and ``margins`` as a user calls them."""

import csv
import json

import numpy as np
import pytest

import segcal


def test_decide_writes_masks_and_prints_a_table(learned, run, tmp_path):
    call = ("decide", *learned()[0], "-o", tmp_path / "out", "--rule", "dice")
    done = run(*call)
    assert done.code == 0, done
    for text in ("3 cases written to", "Nothing is guaranteed", "class 1"):
        assert text in done.out
    with (tmp_path / "out" / "decide.csv").open(newline="") as file:
        assert [row["case"] for row in csv.DictReader(file)] == ["m1", "m1", "n1", "n1", "n2", "n2"]
    assert len(run(*call, "--json").document["rows"]) == 6
    assert "0 cases written" in run(*call).out


def test_masks_of_structures_may_overlap(learned, run, tmp_path):
    nibabel = pytest.importorskip("nibabel")
    options = ["--rule", "recall=0.8", "--all-classes", "--json"]
    done = run("decide", *learned()[0], "-o", tmp_path / "out", *options)
    assert done.code == 0, done
    assert "about so, and nothing is proved" in done.document["promise"]
    for number in range(3):
        values = np.asarray(nibabel.load(tmp_path / "out" / f"class{number}" / "n1.nii.gz").dataobj)
        row = done.document["rows"][3 + number]
        assert (row["case"], row["voxels"], row["guaranteed"]) == ("n1", values.sum(), 0.8)


def test_mistakes_in_a_rule_are_one_sentence(learned, run, tmp_path):
    call = ["decide", *learned()[0], "-o", tmp_path / "out", "--rule"]
    for rule, text in {
        "recall=0.95": "error: a share of 0.05 is asked for, but 12 reference groups",
        "iou": "error: no rule is named 'iou'. Choose one of: argmax, dice, recall, precision, volume.",
    }.items():
        done = run(*call, rule)
        assert done.code == 2
        assert done.err.startswith(text)
        assert not (tmp_path / "out").exists()


@pytest.fixture
def stream(learned):
    return learned(letters="abcdefgh", each=3, new=[f"n{k}" for k in range(9)])


def test_a_stream_goes_on_in_its_file(stream, run, tmp_path):
    call = ("monitor", *stream[0], "--state", tmp_path / "s.json")
    first = run(*call)
    assert first.code == 0, first
    assert "9 groups added, " in first.out
    assert "no sign of a drift in 9 groups" in first.out
    again = run(*call).out
    assert "0 groups added" in again
    assert "9 already known by name and left out, also if their files have changed" in again
    few = run("monitor", *stream[0], "--rate", "0.001")
    assert (
        "the reference has 24 groups, so that no single one is ever called unusual: a rate of 0.001 needs 999"
        in few.out
    )


def test_a_drift_is_an_exit_code_and_a_document(stream, run):
    for path in stream[1].predictions.iterdir():
        np.save(path, 0.1 * np.load(path))
    done = run("monitor", *stream[0], "--json")
    assert (done.code, done.document["applies"], len(done.document["draws"])) == (4, False, 9)
    assert done.document["verdict"].startswith("this calibrator no longer applies: since n0")
    assert "unusual" in run("monitor", *stream[0]).out


def test_an_alarm_is_printed_by_monitor_and_trust(stream, run, tmp_path):
    assert run("monitor", *stream[0], "--json").document["alarms"] == []
    for path in stream[1].predictions.iterdir():
        logits = np.load(path)
        logits[1] += 4
        np.save(path, logits)
    watched, trusted = run("monitor", *stream[0]), run("trust", *stream[0], "-o", tmp_path / "trust")
    assert (watched.code, trusted.code) == (4, 0)
    for done in (watched, trusted):
        said = " ".join(done.out.split())
        assert "class frequencies since n0 are unlike those of any part of the reference cases, most that of " in said
        assert "there. Label some of these cases and fit again." in said
    assert json.loads((tmp_path / "trust" / "trust.json").read_text())["alarms"]


HOME, ELSEWHERE = np.array([0.7, 0.3]), np.array([0.3, 0.7])


def place(seed, cases, prior, scale=1.0):
    rng = np.random.default_rng(seed)
    labels = np.stack([rng.choice(2, size=(9, 40), p=rng.dirichlet(80 * prior)) for _ in range(cases)])
    shown = np.stack([labels == number for number in range(2)], 1)
    logits = 2 * (rng.normal(size=shown.shape) + 2 * shown) + np.log(HOME)[:, None, None]
    return (scale * logits).astype(np.float32), labels


@pytest.mark.parametrize(("prior", "scale", "code"), [(ELSEWHERE, 1.0, 0), (HOME, 1.0, 0), (HOME, 0.4, 4)])
def test_adapt_writes_a_calibrator_or_says_why_not(tmp_path, run, prior, scale, code):
    logits, labels = place(0, 24, HOME)
    segcal.save(segcal.learn_trust(segcal.fit("ts", logits, labels), logits, labels), tmp_path / "calibrator")
    (tmp_path / "new").mkdir()
    for number, logits in enumerate(place(7, 8, prior, scale=scale)[0]):
        np.save(tmp_path / "new" / f"case{number}.npy", logits)
    done = run("adapt", tmp_path / "calibrator", tmp_path / "new", "-o", tmp_path / "out", "--kind", "logits")
    assert done.code == code
    assert (tmp_path / "out" / "calibrator.json").exists() == ("written to" in done.out) == (prior is ELSEWHERE)


def test_maps_for_a_viewer(make_folders, run, tmp_path):
    nibabel = pytest.importorskip("nibabel", reason="nibabel is not installed: make setup-frameworks")
    folders = make_folders("nnunet")
    assert run("fit", *folders.both, "-o", tmp_path / "cal", "--calibrator", "ts").code == 0
    done = run("view", tmp_path / "cal", folders.predictions, "-o", tmp_path / "maps", "--to", "contours", "--json")
    assert done.code == 0, done.err
    assert len(done.document["files"]) == 3 * 6
    shown = nibabel.load(tmp_path / "maps" / "a1" / "liver_levels.nii.gz")
    label = nibabel.load(folders.predictions / "a1.nii.gz")
    assert shown.shape == label.shape
    # The last level of a class lies inside its mask.
    assert set(label.get_fdata()[shown.get_fdata() == 3]) == {1}
    again = run("view", tmp_path / "cal", folders.predictions, "-o", tmp_path / "maps")
    assert again.code == 2
    assert "is not empty, but files for a viewer go into a new folder" in again.err


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
    assert json.loads((masks / "m.json").read_text())["structures"][0]["name"] == "disc"
    call = ("margins", "apply", "new", "--margins", "m.json", "-o", "out")
    done = run(*call, "--json")
    assert done.code == 0, done.err
    assert [row["case"] for row in done.document["volumes"]] == ["patient0_0", "patient0_1"]
    levels = np.load(masks / "out" / "patient0_0" / "disc.npy")
    np.testing.assert_array_equal(levels >= 2, np.load(masks / "new" / "patient0_0.npy") == 1)
    assert {1, 2, 3} <= set(np.unique(levels))
    shown = run(*call).out
    assert "patient0_1" in shown
    assert "2 cases written to out" in shown


@pytest.mark.usefixtures("masks")
def test_groups_and_shares_of_margins_on_average(run):
    call = ("margins", "fit", "p", "--labels", "l", "-o", "m.json", "--json")
    assert run(*call, "--groups", r"(patient\d+)_").document["draws"] == 10
    found = run(*call, "--on-average", "--share", "0.8").document
    assert (found["draws"], found["on_average"], found["share"]) == (20, True, 0.8)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("fit p -o m.json", "--labels is for fit and --margins for apply, but each needs its own"),
        ("apply p -o out", "--labels is for fit and --margins for apply"),
        ("apply p -o out --margins none.json", "none.json is missing, but it is needed"),
        ("apply p -o p --margins l/patient0_0.npy", "p is one of the inputs"),
        ("fit p --labels l -o p/m.json", "p/m.json is among the files of p, which are read"),
        ("fit p --labels l -o notes.json", "exists and was not written by this command"),
        ("fit p --labels l -o m.json --level 0.99", "but level 0.99 needs 99"),
    ],
)
def test_mistakes_with_margins_are_one_sentence(options, message, masks, run):
    (masks / "notes.json").write_text("{}")
    done = run("margins", *options.split())
    assert done.code == 2
    assert message in done.err
    assert (masks / "notes.json").read_text() == "{}"
    assert not (masks / "out").exists()


def test_a_mask_without_a_label_is_listed(masks, run):
    (masks / "l" / "patient3_7.npy").unlink()
    done = run("margins", "fit", "p", "--labels", "l", "-o", "m.json")
    assert done.code == 3
    assert "patient3_7: " in done.err
    assert run("margins", "fit", "p", "--labels", "l", "-o", "m.json", "--strict").code == 2
