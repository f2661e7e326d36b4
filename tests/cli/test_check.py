import io
import pickle
import shutil
import zipfile

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st


def test_what_is_in_the_folder_is_shown(folders, run):
    done = run("check", *folders.both, "--class-names", "sky,road,car")
    assert done.code == 0
    assert "6 cases, 3 classes; format npy, kind logits" in done.out
    assert "0 sky" in done.out
    assert "6 cases are few: with 25 or more, intervals narrow." in done.out
    assert done.out.endswith("usable: every case can be read\n")


def test_shares_are_those_of_the_arrays(folders, run):
    document = run("check", *folders.both, "--json").document
    predicted = np.concatenate([scores.argmax(0).reshape(-1) for scores in folders.scores.values()])
    labelled = np.concatenate([np.load(path).reshape(-1) for path in folders.labels.iterdir()])
    for line in document["classes"]:
        assert line["predicted"] == pytest.approx((predicted == line["class"]).mean())
        assert line["labels"] == pytest.approx((labelled == line["class"]).mean())
    assert document["usable"] is True
    assert [row["id"] for row in document["rows"]] == sorted(folders.scores)


def test_problems_of_one_kind_are_one_line_and_options_are_spelt_as_on_the_command_line(folders, run):
    for path in sorted(folders.labels.iterdir())[:-1]:
        np.save(path, np.full((4, 5, 6), 9, np.uint8))
    done = run("check", *folders.both)
    assert done.code == 3
    assert done.out.count("error") == 1
    assert "5 of 6 cases not usable" in done.out
    errors = [one for one in run("check", *folders.both, "--json").document["problems"] if one["severity"] == "error"]
    assert [one["case_id"] for one in errors] == ["a1", "a2", "b1", "b2", "c1"]
    assert all(one["text"].endswith("Map these labels, or pass --ignore 9.") for one in errors)
    strict = run("check", *folders.both, "--strict")
    assert strict.code == 2
    assert strict.err.startswith("error: case 'a1': ")


def test_more_cases_than_fit_are_counted(make_folders, run):
    folders = make_folders(ids=[f"case{number:02d}" for number in range(9)])
    for path in folders.labels.iterdir():
        np.save(path, np.full((4, 5, 6), 9, np.uint8))
    done = run("check", *folders.both)
    assert done.code == 2
    assert "case04" in done.out
    assert "case05" not in done.out
    assert "and 4 more" in done.out


def test_predictions_alone_can_be_checked(folders, run):
    assert run("check", folders.predictions, *folders.options).code == 0
    done = run(
        "check", folders.predictions, folders.labels, "--no-labels", "--kind", "logits", "--pooling", "mean_probs"
    )
    assert done.code in (2, 3)


def npy(values):
    stream = io.BytesIO()
    np.save(stream, values)
    return stream.getvalue()


def npz(values):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("probabilities.npy", npy(values))
    return stream.getvalue()


SCORES = np.random.default_rng(0).dirichlet(np.ones(3), (4, 5)).transpose(2, 0, 1).astype(np.float32)
SEEDS = {
    ".npy": npy(SCORES),
    ".npz": npz(SCORES),
    ".pkl": pickle.dumps({"bbox_used_for_cropping": [[0, 4], [0, 5]], "shape_before_cropping": (4, 5)}),
    ".json": b'{"labels": {"background": 0, "a": 1, "b": 2}, "file_ending": ".png"}',
    ".nii": b"\x5c\x01\0\0" + bytes(348),
    ".safetensors": b"\x40\0\0\0\0\0\0\0"
    + b'{"scores":{"dtype":"F32","shape":[3,4],"data_offsets":[0,48]}}  '
    + bytes(48),
}


@st.composite
def damaged(draw):
    """A valid file of some ending, with bytes changed, cut off or added; or bytes of no meaning at all."""
    ending = draw(st.sampled_from(sorted(SEEDS)))
    content = bytearray(SEEDS[draw(st.sampled_from([ending, *SEEDS]))])
    for _ in range(draw(st.integers(0, 4))):
        content[draw(st.integers(0, len(content) - 1))] = draw(st.integers(0, 255))
    cut = draw(st.one_of(st.none(), st.integers(0, len(content))))
    return ending, bytes(content[:cut]) + draw(st.binary(max_size=20))


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(files=st.lists(damaged(), min_size=1, max_size=4), kind=st.sampled_from([None, "logits", "probs", "sigmoid"]))
def test_damaged_files_of_any_kind_are_reported_and_never_a_traceback(files, kind, run, tmp_path):
    folder = tmp_path / "fuzz"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for number, (ending, content) in enumerate(files):
        name = "dataset" if ending == ".json" else f"case{number // 2}"
        (folder / f"{name}{ending}").write_bytes(content)
    done = run("check", folder, *([] if kind is None else ["--kind", kind]))
    assert done.code in (0, 2, 3)
    if done.code == 2 and not done.out:
        assert len(done.err.splitlines()) == 1


def test_what_all_cases_together_show_is_one_line(scene_folder, run):
    folders = scene_folder(change=lambda number, labels: labels[:, ::-1])
    done = run("check", *folders, "--kind", "logits")
    assert done.code == 0
    assert done.out.count("labels fit clearly better as numpy.flip(labels, 1)") == 1
    assert done.out.endswith("usable: every case can be read; look into the 1 suspicion above first\n")
    assert "and 1 more" in done.out
    problems = run("check", *folders, "--kind", "logits", "--json").document["problems"]
    assert problems[0]["case_ids"] == [f"c{number}" for number in range(6)]
