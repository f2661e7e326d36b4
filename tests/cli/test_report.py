import json

import numpy as np
import pytest

import segcal
from segcal.cli import main


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Predictions and labels of eight small pictures, and a fitted calibrator."""
    root = tmp_path_factory.mktemp("report")
    rng = np.random.default_rng(0)
    for name in ("predictions", "labels"):
        (root / name).mkdir()
    for number in range(8):
        labels = np.kron(rng.integers(3, size=(3, 4)), np.ones((5, 4), int))
        noise = rng.normal(size=(3, *labels.shape))
        logits = 3 * (np.eye(3)[labels].transpose(2, 0, 1) + 0.8 * noise)
        np.save(root / "predictions" / f"case{number}.npy", logits.astype(np.float32))
        np.save(root / "labels" / f"case{number}.npy", labels.astype(np.uint8))
    cases = segcal.open_cases(root / "predictions", labels=root / "labels", kind="logits")
    segcal.save(segcal.fit("ts", cases.subset(cases.ids[:3])), root / "calibrator")
    return root


def run(*words):
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    return ended.value.code


def test_a_folder_that_is_none_ends_in_one_sentence(tmp_path, capsys):
    assert run("report", tmp_path) == 2
    said = capsys.readouterr().err
    assert said.startswith(
        f"error: {tmp_path} has no protocol.json, but a folder written by segcal benchmark is needed"
    )
    assert said.count("\n") == 1


def test_an_evaluation_writes_a_small_page(folders, tmp_path):
    page = tmp_path / "page.html"
    words = ("evaluate", folders / "predictions", folders / "labels", "--kind", "logits")
    assert run(*words, "--calibrator", folders / "calibrator", "--report", page) == 0
    text = page.read_text("utf-8")
    document = json.loads(text.split('id="data">')[1].split("</script>")[0])
    assert document["kind"] == "evaluation"
    assert document["places"][0]["division"] == {"cal": 3, "val": 0, "test": 5, "repeats": 1, "seen": 0}


def test_a_calibrator_and_predictions_mean_an_evaluation_with_a_page(folders, tmp_path, capsys, monkeypatch):
    words = (folders / "predictions", folders / "labels", "--kind", "logits")
    options = ("--calibrator", folders / "calibrator", "--report", tmp_path / "expected.html", "--json")
    assert run("evaluate", *words, *options) == 0
    expected = capsys.readouterr().out
    assert run("report", folders / "calibrator", *words, "-o", tmp_path / "page.html", "--json") == 0
    assert capsys.readouterr().out == expected
    assert (tmp_path / "page.html").read_bytes() == (tmp_path / "expected.html").read_bytes()
    monkeypatch.chdir(tmp_path)
    assert run("report", folders / "calibrator", *words) == 0
    assert (tmp_path / "report.html").is_file()
    assert run("report", folders / "calibrator", *words, "--figures", tmp_path / "f") == 2
    assert "--figures are those of a folder of results, but a calibrator was named" in capsys.readouterr().err


def test_a_page_of_the_cases_that_were_fitted_on_says_so(folders, tmp_path):
    fitted = tmp_path / "fitted"
    for part in ("predictions", "labels"):
        (fitted / part).mkdir(parents=True)
        for number in range(3):
            name = f"case{number}.npy"
            (fitted / part / name).write_bytes((folders / part / name).read_bytes())
    words = ("evaluate", fitted / "predictions", fitted / "labels", "--kind", "logits")
    assert run(*words, "--calibrator", folders / "calibrator", "--report", tmp_path / "page.html") == 0
    assert "No case was held out" in (tmp_path / "page.html").read_text("utf-8")


def test_a_protocol_and_its_page_are_written_by_one_command(folders, tmp_path, capsys):
    protocol = tmp_path / "protocol.toml"
    protocol.write_text(
        'repeats = 1\nstudies = ["worst_cases"]\nsplit = {cal = 3, val = 2}\n'
        'pipelines = [{pooling = "single", calibrator = "identity"}, {pooling = "single", calibrator = "ts"}]\n'
        "bootstrap = {replicates = 20}\n"
        '[[tasks]]\nname = "blobs"\nkind = "logits"\n'
        f'members = ["{folders}/predictions"]\nlabels = "{folders}/labels"\n'
    )
    assert run("benchmark", protocol, "-o", tmp_path / "results") == 0
    assert (tmp_path / "results" / "report.html").is_file()
    capsys.readouterr()
    assert run("report", tmp_path / "results", "-o", tmp_path / "r.html", "--figures", tmp_path / "f", "--json") == 0
    assert json.loads(capsys.readouterr().out)["report"] == str(tmp_path / "r.html")
    assert (tmp_path / "f" / "inputs_blobs.svg").is_file()

    (tmp_path / "f" / "inputs_blobs.svg").write_text("precious")
    (tmp_path / "r.html").write_text("precious")
    for options in (["-o", tmp_path / "r.html"], ["-o", tmp_path / "s.html", "--figures", tmp_path / "f"]):
        assert run("report", tmp_path / "results", *options) == 2
        assert "exists and was not written by this command, but it would be lost" in capsys.readouterr().err
        assert run("report", tmp_path / "results", *options, "--overwrite") == 0
        assert run("report", tmp_path / "results", *options) == 0
    assert run("report", tmp_path / "results", "-o", tmp_path / "results" / "summary.json", "--overwrite") == 2
    assert "summary.json is one of the inputs, but they are never overwritten" in capsys.readouterr().err
