"""What a killed run left goes with the next one, wherever it lay, and the next one goes on; what is not ours stays."""

import subprocess
import sys
from pathlib import Path

import pytest

from segcal.atomic import MARKER, SIGNATURE, remove_leftovers, temporary
from segcal.cases.remote import check_new, upload
from segcal.errors import InputError

CASES = ("a", "b", "c")


def left_by_a_kill(folder, moment):
    """Return a temporary folder as a process leaves it that is killed before, while or after it signs it."""
    folder.mkdir(exist_ok=True)
    with temporary(folder) as made:
        pass
    made.mkdir()
    if moment > 0:
        (made / MARKER).write_bytes(SIGNATURE if moment > 1 else b"")
    if moment > 1:
        (made / "half").write_bytes(b"1")
    return made


def temporaries(folder):
    return [path.name for path in Path(folder).rglob(".segcal-*")]


@pytest.mark.parametrize(
    ("command", "place"),
    [
        ("evaluate predictions labels --kind logits --metrics nll --csv new.csv", "."),
        ("evaluate predictions labels --kind logits --metrics nll --report new.html", "."),
        ("evaluate predictions labels --kind logits --metrics nll -o new", "new"),
        ("check predictions labels --kind logits -o new", "new"),
        ("audit cal predictions --kind logits -o new", "new"),
        ("card cal -o new.md", "."),
        ("monitor cal predictions --kind logits --state new.json", "."),
        ("fit predictions labels --kind logits --calibrator ts --trust-on none --splits new.json -o new", "."),
        ("trust cal predictions --kind logits --level 0.6 -o new --masks --overwrite", "new/masks"),
    ],
)
def test_nothing_stays_beside_what_is_written(command, place, work, run):
    (work / place).mkdir(parents=True, exist_ok=True)
    for moment in range(3):
        left_by_a_kill(work / place, moment)
    assert run(command)[0] == 0
    assert temporaries(work) == []


def test_an_empty_folder_of_another_name_or_with_more_in_it_is_not_swept(tmp_path):
    others = [tmp_path / ".segcal-0123456789abcdef", tmp_path / ".segcal-0123456789abcdee"]
    for folder in others:
        folder.mkdir()
    (others[1] / MARKER).touch()
    mine = left_by_a_kill(tmp_path, 1)
    (mine / "notes.txt").write_text("precious")
    noted = left_by_a_kill(tmp_path, 0)
    (noted / "notes.txt").write_text("precious")
    remove_leftovers(tmp_path)
    assert sorted(temporaries(tmp_path)) == sorted(path.name for path in (*others, mine, noted))


def test_a_living_process_whose_folder_is_swept_in_the_first_moment_makes_another(tmp_path, monkeypatch):
    import segcal.atomic

    hold, swept = segcal.atomic.hold, []

    def after_a_sweep(descriptor):
        if not swept:
            swept.append(temporaries(tmp_path))
            remove_leftovers(tmp_path)
        return hold(descriptor)

    monkeypatch.setattr(segcal.atomic, "hold", after_a_sweep)
    with temporary(tmp_path) as beside:
        assert (beside / MARKER).read_bytes() == SIGNATURE
        assert temporaries(tmp_path) == [beside.name] != swept[0]
        remove_leftovers(tmp_path)
        assert beside.is_dir()
    assert temporaries(tmp_path) == []


DIES = """
import os, sys
from segcal.cli import main
{what}
main(sys.argv[1:])
"""
AT_THE_SECOND_MASK = """
from segcal.trust.guarantees import MaskWriter
write, seen = MaskWriter.__call__, []
def then_die(self, case_id):
    if seen:
        os.kill(os.getpid(), 9)
    seen.append(case_id)
    return write(self, case_id)
MaskWriter.__call__ = then_die
"""
BEFORE_THE_MARKER = """
import segcal.cases.write
segcal.cases.write.write_text = lambda *_: os.kill(os.getpid(), 9)
"""


def killed(work, what, command):
    script = DIES.format(what=what)
    done = subprocess.run([sys.executable, "-c", script, *command.split()], check=False, cwd=work)
    assert done.returncode == -9


def test_trust_goes_on_with_its_masks(work, run):
    command = "trust cal predictions --kind logits --level 0.6 --masks -o"
    killed(work, AT_THE_SECOND_MASK, f"{command} new")
    assert not (work / "new" / "masks").exists()
    assert run(f"{command} new")[0] == run(f"{command} whole")[0] == 0
    assert temporaries(work / "new") == []
    for case_id in CASES:
        name = f"masks/{case_id}.npy"
        assert (work / "new" / name).read_bytes() == (work / "whole" / name).read_bytes()


def test_apply_goes_on_where_the_folder_has_files_of_all_cases(work, run):
    assert run("convert predictions --labels labels --kind logits -o store")[0] == 0
    killed(work, BEFORE_THE_MARKER, "apply cal store -o new")
    assert run("apply cal store -o new")[0] == 0
    made, given = ({path.name for path in (work / name).iterdir()} for name in ("new", "store"))
    assert made == given | {"calibration.json"}


def test_results_that_were_on_their_way_to_a_url_go_on(tmp_path):
    fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed: make setup-frameworks")
    (tmp_path / "out").mkdir()
    for name in ("a.txt", "b.txt"):
        (tmp_path / "out" / name).write_text(name)
    url, fs = f"file://{tmp_path}/there", fsspec.filesystem("file")

    class KilledError(BaseException):
        pass

    def dies(path):
        fs.pipe_file(path, b"half")
        raise KilledError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(fs), "put_file", lambda self, local, path: dies(path))
        with pytest.raises(KilledError):
            upload(tmp_path / "out", url)
    check_new(url)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "a.txt").write_text("another")
    with pytest.raises(InputError, match="there holds other results, but nothing there is overwritten"):
        upload(tmp_path / "other", url)
    upload(tmp_path / "out", url)
    assert {path.name: path.read_text() for path in (tmp_path / "there").iterdir()} == {
        n: n for n in ("a.txt", "b.txt")
    }
    with pytest.raises(InputError, match="holds results already"):
        check_new(url)
