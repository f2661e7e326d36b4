"""Nothing that a command reads, and nothing that somebody else wrote, is lost: whatever the options say."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import segcal
from segcal.atomic import MARKER, REPLACED, SIGNATURE, NotWrittenError, put, remove_leftovers, temporary, write_text
from segcal.cases.base import CaseError
from segcal.errors import InputError
from segcal.target import LOCK, claim, claim_beside
from tests.faults.places import files_of

EVALUATE = "evaluate predictions labels --kind logits --overwrite"
INPUT = "is one of the inputs, but they are never overwritten. Choose another name."
AMONG = "which are read, but results would be mixed with them. Name another target."
# A command that names an input, in some spelling, as a target; and what is said of it.
REPLACING = {
    f"{EVALUATE} --csv predictions/a.npy": INPUT,
    f"{EVALUATE} --report labels/../labels/b.npy": INPUT,
    f"{EVALUATE} --summary symbolic.npy": INPUT,
    f"{EVALUATE} --csv hard.npy": INPUT,
    f"{EVALUATE} --calibrator cal --csv cal/calibrator.json": INPUT,
    f"{EVALUATE} --calibrator cal --csv cal/weights.safetensors": INPUT,
    f"{EVALUATE} --calibrator cal -o cal": INPUT,
    f"{EVALUATE} --groups groups.csv --csv groups.csv": INPUT,
    f"{EVALUATE} -o predictions": INPUT,
    "evaluate file://{work}/predictions labels --kind logits --overwrite --csv predictions/a.npy": INPUT,
    f"{EVALUATE} --csv predictions/new.csv": AMONG,
    "check predictions labels --kind logits -o labels": INPUT,
    "audit cal predictions --kind logits -o cal": INPUT,
    "apply cal predictions --kind logits -o predictions --overwrite": INPUT,
    "apply cal predictions --kind logits -o predictions/x.npy --overwrite": AMONG,
    "trust cal predictions --kind logits -o predictions --overwrite": INPUT,
    "trust cal predictions --kind logits -o linked --overwrite": INPUT,
    "convert predictions --labels labels --kind logits -o labels --overwrite": INPUT,
    "view cal predictions --kind logits -o predictions": INPUT,
    "monitor cal predictions --kind logits --state cal/calibrator.json": INPUT,
    "monitor cal predictions --kind logits --state predictions/a.npy": INPUT,
    "fit predictions labels --kind logits -o predictions --overwrite": INPUT,
    "fit predictions labels --kind logits -o out --splits predictions/splits.json": AMONG,
    "card cal cases.csv -o cases.md --subgroups cases.md --overwrite": INPUT,
    "card cal cases.json -o cases.json --overwrite": INPUT,
    "export cal network.onnx --model network.onnx --overwrite": INPUT,
    "report cal predictions labels --kind logits -o labels/a.npy --overwrite": INPUT,
    "report cal predictions labels --kind logits -o cal/calibrator.json --overwrite": INPUT,
    "nnunet predict -d 1 -c 2d --calibrator cal -i predictions -o predictions": INPUT,
    "merge predictions labels -o labels -- check predictions labels --kind logits": INPUT,
}


@pytest.mark.parametrize("command", REPLACING)
def test_no_command_replaces_an_input_or_mixes_with_inputs(command, work, run):
    (work / "symbolic.npy").symlink_to("predictions/a.npy")
    (work / "hard.npy").hardlink_to(work / "labels" / "c.npy")
    (work / "linked").symlink_to("predictions")
    for name in ("groups.csv", "cases.md", "cases.csv", "cases.json", "network.onnx"):
        (work / name).write_text("case,group\na,1\nb,2\nc,3\n")
    before = files_of(work)
    code, said = run(command.replace("{work}", str(work)))
    assert (code, said.count("\n")) == (2, 1), said
    assert REPLACING[command] in said
    assert files_of(work) == before


@pytest.mark.parametrize(
    "command",
    [
        f"{EVALUATE} --csv x --report x",
        f"{EVALUATE} --csv x --summary ./y/../x",
        f"{EVALUATE} --csv x --summary link",
        f"{EVALUATE} --report hard --csv x",
        f"{EVALUATE} -o out --csv out/evaluate.json",
        f"{EVALUATE} -o out --report out/cases.csv",
        "fit predictions labels --kind logits -o out --splits out",
        "fit predictions labels --kind logits -o out --splits out/splits.json",
    ],
)
def test_two_targets_are_two_files(command, work, run):
    (work / "y").mkdir()
    (work / "x").write_text("case,\n")
    (work / "hard").hardlink_to(work / "x")
    (work / "link").symlink_to("x")
    before = files_of(work)
    code, said = run(command)
    assert code == 2
    assert ", but each needs a file of its own. Name another.\n" in said
    assert files_of(work) == before


URL = re.compile(r"is a URL( of an unknown kind)?, but")


@pytest.mark.parametrize(
    "command",
    [
        f"{EVALUATE} --csv s3://bucket/cases.csv",
        f"{EVALUATE} --report https://example.org/page.html",
        "demo --out s3://bucket/demo",
        "monitor cal predictions --kind logits --state s3://bucket/state.json",
        "export cal s3://bucket/model.onnx",
        "card cal -o s3://bucket/card.md",
        "report results -o s3://bucket/report.html",
        "report results --figures s3://bucket/figures",
        "apply s3://bucket/cal predictions --kind logits -o out",
        "apply cal predictions --kind logits -o out --images s3://bucket/images",
        "apply cal predictions --kind logits -o s3://bucket/out --engine slurm --num-parts 2 --slurm cluster=local",
        "fit predictions labels --kind logits -o out --splits s3://bucket/splits.json",
        "nnunet predict -d 1 -c 2d --calibrator cal -i predictions -o s3://bucket/out",
        "nnunet fit -d 1 -c 2d --calibrator s3://bucket/cal",
        "merge s3://bucket/part -o out -- check predictions labels --kind logits",
        "check predictions labels --kind logits -o FILE://{work}/out",
        "evaluate predictions labels --kind logits -o simplecache::file://{work}/out",
        "monitor cal predictions --kind logits --state File://{work}/state.json",
        "report results --figures zip::FILE://{work}/figures",
    ],
)
def test_a_url_stands_only_where_one_is_understood(command, work, run):
    before = sorted(work.rglob("*"))
    code, said = run(command.format(work=work))
    assert (code, said.count("\n")) == (2, 1), said
    assert URL.search(said)
    assert sorted(work.rglob("*")) == before


def test_no_folder_is_made_of_a_url_in_a_program(work):
    fitted = segcal.load("cal")
    assert issubclass(NotWrittenError, segcal.SegcalError)
    for write in (lambda: segcal.save(fitted, "s3://bucket/cal"), lambda: write_text("FILE::S3://bucket/a", "")):
        with pytest.raises(NotWrittenError, match=r"bucket/\w+ is a URL, but a path of this machine is needed"):
            write()
    assert not list(work.glob("*:"))


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("check predictions labels --kind logits -o notes", "notes is a file, but a folder is needed. Name a new one."),
        (f"{EVALUATE} -o linked", "notes is a file, but a folder is needed. Name a new one."),
        ("audit cal predictions --kind logits -o notes/new", "notes/new cannot be written to (Not a directory), but "),
        ("monitor cal predictions --kind logits --state ..", ".. is a folder, but the stream is kept in a file. Name "),
        ("card cal -o loop", ", but "),
        ("check loop labels --kind logits -o new", ", but "),
        ("merge part -o new -- check predictions labels --kind logits", ", but "),
        ("card cal -o {long}.md", " cannot be used (File name too long), but the command needs it. Check the path"),
        ("trust cal predictions --kind logits -o {long}", " cannot be used (File name too long), but the command "),
        (f"{EVALUATE} --images {{long}}", " cannot be used (File name too long), but the command needs it. Check "),
    ],
)
def test_a_place_that_cannot_be_is_one_sentence(command, said, work, run):
    (work / "notes").write_text("precious")
    (work / "linked").symlink_to("notes")
    (work / "loop").symlink_to("loop")
    (work / "part" / ".part").mkdir(parents=True)
    (work / "part" / ".part" / "part.json").symlink_to("part.json")
    before = files_of(work)
    code, found = run(command.format(long="x" * 300))
    assert (code, found.count("\n")) == (2, 1), found
    assert said in found
    assert "[Errno" not in found
    assert files_of(work) == before


def test_a_file_of_a_user_s_inside_a_folder_of_a_result_is_not_replaced(tmp_path):
    zarr = pytest.importorskip("zarr", reason="zarr is not installed: make setup-frameworks")
    scores = (3 * np.random.default_rng(0).normal(size=(2, 6, 7))).astype(np.float32)

    def save(factor):
        stored = zarr.create_array(str(tmp_path / "p" / "a.zarr"), shape=scores.shape, dtype="f4", overwrite=True)
        stored[...] = factor * scores
        return segcal.open_cases(tmp_path / "p", kind="logits")

    fitted = segcal.fit("ts", scores[None], scores.argmax(0)[None])
    assert segcal.apply(fitted, save(1), tmp_path / "out").written
    assert segcal.apply(fitted, save(2), tmp_path / "out").written  # what is as it was written is replaced
    (tmp_path / "out" / "a.zarr" / "notes.txt").write_text("precious")
    before = files_of(tmp_path / "out")
    with pytest.raises(CaseError, match=r"a\.zarr holds notes\.txt, of which segcal has no record, but a result would"):
        segcal.apply(fitted, save(3), tmp_path / "out")
    assert files_of(tmp_path / "out") == before


def test_a_target_that_is_a_link_stays_one(work, run):
    (work / "real").mkdir()
    (work / "cases.csv").symlink_to("real/cases.csv")  # leads nowhere yet
    (work / "out").symlink_to("real")
    for _ in range(2):
        assert run(f"{EVALUATE} --csv cases.csv -o out")[0] == 0
        assert (work / "cases.csv").is_symlink()
        assert (work / "out").is_symlink()
    assert (work / "real" / "cases.csv").read_text().startswith("case,")
    (work / "state.json").symlink_to("real/state.json")
    for _ in range(2):
        run("monitor cal predictions --kind logits --state state.json")
    assert (work / "state.json").is_symlink()
    assert json.loads((work / "real" / "state.json").read_text())


@pytest.mark.parametrize("name", ["trust.json", "report.html", "masks/a.npy"])
def test_a_link_inside_a_target_is_neither_followed_nor_replaced(name, work, run):
    (work / "out" / "masks").mkdir(parents=True)
    (work / "mine.txt").write_text("precious")
    (work / "out" / name).symlink_to(work / "mine.txt")
    code, said = run("trust cal predictions --kind logits -o out --level 0.6 --masks --overwrite")
    assert code in (2, 3)
    assert "is a link to" in said
    assert (work / "mine.txt").read_text() == "precious"
    assert (work / "out" / name).is_symlink()


def test_no_way_of_writing_replaces_a_link(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "link").symlink_to("mine")
    with pytest.raises(NotWrittenError, match=r"link is a link to mine, but links are neither followed nor replaced\."):
        write_text(tmp_path / "link", "x")
    with temporary(tmp_path) as beside:
        (beside / "link").mkdir()
        with pytest.raises(NotWrittenError, match="is a link to mine"):
            put(beside / "link", tmp_path / "link")
    assert files_of(tmp_path) == {"link": "mine"}


FOREIGN = "is not a lock of segcal, but nothing else may have its name. Move it away, or name another folder."


@pytest.mark.parametrize("lock", [f"out/{LOCK}", f"{LOCK}-cal"])
@pytest.mark.parametrize("kind", ["file", "digits", "hard link", "link", "dead link", "folder", "pipe"])
def test_what_has_the_name_of_a_lock_and_is_none_stays_as_it_is(lock, kind, tmp_path):
    (tmp_path / "out").mkdir()
    mine, place = tmp_path / "mine", tmp_path / lock
    mine.write_text("12\n" if kind == "hard link" else "precious")
    make = {
        "file": lambda: place.write_text("precious notes"),
        "digits": lambda: place.write_text("12345678901234567890\n"),
        "hard link": lambda: place.hardlink_to(mine),
        "link": lambda: place.symlink_to(mine),
        "dead link": lambda: place.symlink_to(tmp_path / "new"),
        "folder": lambda: place.mkdir(),
        "pipe": lambda: os.mkfifo(place),
    }
    make[kind]()
    before, facts = files_of(tmp_path) if kind != "pipe" else None, place.lstat()
    with (
        pytest.raises(InputError) as refused,
        claim(tmp_path / "out") if lock.startswith("out") else claim_beside(tmp_path / "cal"),
    ):
        pass
    assert str(refused.value) == f"{place} {FOREIGN}"
    assert before is None or files_of(tmp_path) == before
    assert (place.lstat().st_ino, place.lstat().st_mode) == (facts.st_ino, facts.st_mode)


def test_the_lock_of_a_dead_process_is_replaced_and_never_written_into(tmp_path):
    (tmp_path / LOCK).write_text("4194305\n")
    before = (tmp_path / LOCK).stat().st_ino
    os.link(tmp_path / LOCK, tmp_path / "seen")
    with pytest.raises(InputError, match="is not a lock"), claim(tmp_path):
        pass
    (tmp_path / "seen").unlink()
    with (tmp_path / LOCK).open() as old, claim(tmp_path):
        assert (tmp_path / LOCK).stat().st_ino != before
        assert old.read() == "4194305\n"
    assert files_of(tmp_path) == {}


def test_what_took_the_place_of_a_lock_stays(tmp_path):
    with claim(tmp_path):
        (tmp_path / LOCK).unlink()
        (tmp_path / LOCK).write_text("mine")
    assert files_of(tmp_path) == {LOCK: b"mine"}


def dead(folder):
    """A temporary folder as a dead process leaves it."""
    beside = folder / ".segcal-0123456789abcdef"
    (beside / REPLACED).mkdir(parents=True)
    (beside / MARKER).write_bytes(SIGNATURE)
    return beside


def test_sweeping_takes_nothing_from_elsewhere_and_puts_nothing_but_folders_back(tmp_path):
    for name in ("mine", "out"):
        (tmp_path / name).mkdir()
    (tmp_path / "mine" / "thesis").mkdir()
    (tmp_path / "mine" / "thesis" / "text").write_text("precious")
    beside = dead(tmp_path / "out")
    (beside / REPLACED).rmdir()
    (beside / REPLACED).symlink_to(tmp_path / "mine")  # its content is somebody's
    remove_leftovers(tmp_path / "out")
    assert files_of(tmp_path) == {"mine/thesis/text": b"precious"}
    beside = dead(tmp_path / "out")
    (beside / REPLACED / "evil.npy").write_text("x")
    (beside / REPLACED / "link").symlink_to(tmp_path / "mine")
    (beside / REPLACED / "kept").mkdir()
    (tmp_path / "out" / "kept").symlink_to("nowhere")
    (beside / REPLACED / "calibrator").mkdir()
    remove_leftovers(tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["calibrator", "kept"]
    assert (tmp_path / "out" / "kept").is_symlink()


def test_a_marker_that_is_a_link_or_a_pipe_is_left_alone(tmp_path):
    (tmp_path / "signed").write_bytes(SIGNATURE)
    for number, make in enumerate((lambda path: path.symlink_to(tmp_path / "signed"), os.mkfifo)):
        beside = tmp_path / f".segcal-{number:016x}"
        beside.mkdir()
        make(beside / MARKER)
        (beside / "mine").write_text("precious")
    remove_leftovers(tmp_path)
    assert len(list(tmp_path.glob(".segcal-*/mine"))) == 2


def test_a_calibrator_with_somebody_s_file_in_it_is_not_replaced(work, run):
    (work / "cal" / "notes.txt").write_text("precious")
    before = files_of(work)
    code, said = run("fit predictions labels --kind logits -o cal --overwrite --calibrator ts --trust-on none")
    assert code == 2
    assert "cal exists and is not a calibrator of segcal alone: it holds notes.txt, but a new or empty" in said
    assert files_of(work) == before


def test_files_of_a_user_in_folders_of_results_stay(work, run):
    for command in (
        "apply cal predictions --kind logits -o out/apply --overwrite",
        "trust cal predictions --kind logits -o out/trust --level 0.6 --overwrite --masks",
        f"{EVALUATE} -o out/evaluate",
        "convert predictions --kind logits -o out/store --overwrite",
        "check predictions labels --kind logits -o out/check",
    ):
        place = Path(next(word for word in command.split() if word.startswith("out/")))
        assert run(command) == (0, "")
        for name in ("notes.txt", ".hidden", "more/notes.txt"):
            (place / name).parent.mkdir(exist_ok=True)
            (place / name).write_text("precious")
        np.save(work / "predictions" / "a.npy", np.load(work / "predictions" / "a.npy") + 0.5)
        assert run(command) == (0, "")
        assert all((place / name).read_text() == "precious" for name in ("notes.txt", ".hidden", "more/notes.txt"))


VIEW = """
import os, sys
from segcal.cases import records
from segcal.cli import main
place, seen = records.Records.place, []
def then_die(self, *what):
    if seen:
        os.kill(os.getpid(), 9)
    seen.append(place(self, *what))
    return seen[-1]
records.Records.place = then_die
main(sys.argv[1:])
"""


def test_view_goes_on_after_an_interruption(work, run, capsys):
    pytest.importorskip("nibabel", reason="nibabel is not installed: make setup-frameworks")
    words = ["view", "cal", "predictions", "--kind", "logits", "-o", "maps", "--to", "bids"]
    killed = subprocess.run([sys.executable, "-c", VIEW, *words], check=False, cwd=work)
    assert killed.returncode == -9
    first = {path: path.stat().st_mtime_ns for path in (work / "maps").glob("*.nii.gz")}
    assert len(first) == 2
    assert run(" ".join(words))[0] == 0
    assert {path: path.stat().st_mtime_ns for path in first} == first  # those were not made again
    assert len(list((work / "maps").glob("*.nii.gz"))) == 6
    assert run("view cal predictions --kind logits -o whole --to bids")[0] == 0
    assert files_of(work / "maps") == files_of(work / "whole")
    changed = work / "predictions" / "b.npy"
    np.save(changed, np.load(changed) * 2)
    assert run(" ".join(words))[0] == 0
    assert files_of(work / "maps") != files_of(work / "whole")
    (work / "maps" / "notes.txt").write_text("precious")
    code, said = run(" ".join(words))
    assert code == 2
    assert "maps is not empty, but files for a viewer go into a new folder." in said
