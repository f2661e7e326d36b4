"""Parts that have served go; what a user put beside them does not."""

import numpy as np
import pytest

import segcal
from segcal.cases.parallel import Engine
from segcal.scale.ledger import ENDING
from segcal.scale.part import FACTS, FOLDER
from segcal.scale.served import kept_beside, remove_parts


class Plain(Engine):
    def outcomes(self, ids, function, about):
        return ((case_id, lambda case_id=case_id: function(case_id)) for case_id in ids)


def worked(part, ids, stop=None):
    done = []

    def work(case_id):
        if case_id == stop:
            raise KeyboardInterrupt
        done.append(case_id)
        return 1

    for _, outcome in part.outcomes(ids, work, "work"):
        outcome()
    return done


@pytest.fixture
def cases():
    return segcal.ArrayCases([np.full((2, 3), float(i)) for i in range(4)], ids=[f"c{i}" for i in range(4)])


def test_results_kept_beside_an_output_go_when_all_are_there(cases, tmp_path):
    place = tmp_path / "out.parts"
    with pytest.raises(KeyboardInterrupt), kept_beside(tmp_path / "out", [cases], {}, Plain()) as part:
        worked(part, cases.ids, stop="c2")
    assert list((place / FOLDER).glob(f"*{ENDING}"))
    with kept_beside(tmp_path / "out", [cases], {}, Plain()) as part:
        assert worked(part, cases.ids) == ["c2", "c3"]
    assert not list(tmp_path.iterdir())


def test_what_a_user_put_beside_results_stays(cases, tmp_path):
    with kept_beside(tmp_path / "out", [cases], {}, Plain()) as part:
        worked(part, cases.ids)
        (tmp_path / "out.parts" / "notes.txt").write_text("mine")
        (tmp_path / "out.parts" / FOLDER / "log.txt").write_text("mine too")
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    assert left == [f"out.parts/{FOLDER}/log.txt", "out.parts/notes.txt"]


def test_files_of_parts_go_only_if_the_result_has_the_same(tmp_path):
    place, result = tmp_path / "out.parts", tmp_path / "out"
    for name, text in {
        f"part0/{FOLDER}/{FACTS}": "{}",
        "part0/.segcal/a.json": "{}",
        "part0/a.npy": "1",
        "part0/b.npy": "another",
        "logs/7/7_0_log.out": "log",
        "logs/notes.txt": "mine",
    }.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text)
    (place / "part0" / "link").symlink_to(tmp_path)
    result.mkdir()
    for name in ("a.npy", "b.npy"):
        (result / name).write_text("1")
    remove_parts(place, result)
    left = sorted(str(path.relative_to(place)) for path in place.rglob("*") if not path.is_dir() or path.is_symlink())
    assert left == ["logs/notes.txt", "part0/b.npy", "part0/link"]
    for name in left:
        (place / name).unlink()
    remove_parts(place, result)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]
