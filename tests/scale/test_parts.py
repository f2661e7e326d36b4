"""Parts: every case in exactly one; what was interrupted goes on; together they give what one process gives."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import segcal
from segcal.cases.parallel import Engine
from segcal.errors import InputError
from segcal.scale.cache import ENDING
from segcal.scale.part import FACTS, FOLDER, Part, kept_beside, remove_parts


def collection(number, **changed):
    ids = [f"c{i:03}" for i in range(number)]
    return segcal.ArrayCases([np.full((2, 3), float(changed.get(name, i))) for i, name in enumerate(ids)], ids=ids)


def worked(part, cases, stop=None):
    """Let a part work on cases until it is interrupted at one; return what was done, and the results."""
    done = []

    def work(case_id):
        if case_id == stop:
            raise KeyboardInterrupt
        done.append(case_id)
        return len(case_id) ** 2

    return done, [(case_id, outcome()) for case_id, outcome in part.outcomes(cases.ids, work, "square")]


@given(st.integers(1, 40), st.data())
def test_every_case_is_in_exactly_one_part(cases, data):
    of = data.draw(st.integers(1, cases))
    parts = [Part("nowhere", [collection(cases)], number, of).ids for number in range(of)]
    assert sorted(case_id for part in parts for case_id in part) == list(collection(cases).ids)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize(("number", "of"), [(2, 2), (-1, 2), (0, 0), (0, 6)])
def test_parts_that_are_not_there_are_refused(number, of):
    with pytest.raises(
        InputError, match=r"part_id is .* but shards are numbered|num_parts is 6, but there are 5 cases"
    ):
        Part("nowhere", [collection(5)], number, of)


def test_an_interrupted_part_goes_on_with_what_is_missing_or_has_changed(tmp_path):
    cases = collection(7)
    with pytest.raises(KeyboardInterrupt), Part(tmp_path / "p", [cases], 0, 2) as part:
        worked(part, cases, stop="c004")
    with Part(tmp_path / "p", [cases], 0, 2) as part:
        assert worked(part, cases) == (["c004", "c006"], [(f"c00{i}", 16) for i in (0, 2, 4, 6)])
    with Part(tmp_path / "p", [changed := collection(7, c002=9)], 0, 2) as part:
        assert worked(part, changed)[0] == ["c002"]
        with (
            pytest.raises(InputError, match="is being written to by another segcal"),
            Part(tmp_path / "p", [cases], 0, 2),
        ):
            pass


def test_cases_of_one_name_must_be_the_same():
    Part("nowhere", [collection(3), collection(3)])
    with pytest.raises(InputError, match="case 'c001' is in two folders, but shards know cases by their names"):
        Part("nowhere", [collection(3), collection(3, c001=7)])


@pytest.fixture(scope="module")
def labelled():
    rng = np.random.default_rng(4)
    logits = [(3 * rng.normal(size=(3, 4 + number, 5))).astype(np.float32) for number in range(9)]
    labels = [(each / 2 + rng.gumbel(size=each.shape)).argmax(0) for each in logits]
    return segcal.ArrayCases(logits, labels, ids=[f"c{number}" for number in (4, 2, 8, 0, 1, 7, 3, 5, 6)])


@pytest.fixture(scope="module")
def alone(labelled):
    return repr(segcal.evaluate(labelled, segcal.make_calibrator("ts", 3), replicates=20).to_plain())


@settings(max_examples=4)
@given(st.permutations(range(7)), st.sampled_from([1, 2, 7]))
def test_parts_in_any_order_give_what_one_process_gives(labelled, alone, tmp_path_factory, order, of):
    place, calibrator = tmp_path_factory.mktemp("parts"), segcal.make_calibrator("ts", 3)
    folders = []
    for number in [number for number in order if number < of]:
        with segcal.Part(place / str(number), [labelled], number, of) as part:
            segcal.evaluate(part.take(labelled), calibrator, workers=part, replicates=1)
        folders.insert(len(folders) // 2, place / str(number))
    merged = segcal.merge(folders, labelled)
    assert repr(segcal.evaluate(labelled, calibrator, workers=merged, replicates=20).to_plain()) == alone


def test_no_parts_are_no_result():
    with pytest.raises(InputError, match="parts is empty, but at least one shard is needed"):
        segcal.merge([])


class Plain(Engine):
    def outcomes(self, ids, function, about):
        return ((case_id, lambda case_id=case_id: function(case_id)) for case_id in ids)


def test_results_kept_beside_an_output_go_when_all_are_there(tmp_path):
    cases, place = collection(4), tmp_path / "out.parts"
    with pytest.raises(KeyboardInterrupt), kept_beside(tmp_path / "out", [cases], {}, Plain()) as part:
        worked(part, cases, stop="c002")
    assert list((place / FOLDER).glob(f"*{ENDING}"))
    with kept_beside(tmp_path / "out", [cases], {}, Plain()) as part:
        assert worked(part, cases)[0] == ["c002", "c003"]
    assert not list(tmp_path.iterdir())


def left_in(place):
    return sorted(str(path.relative_to(place)) for path in place.rglob("*") if not path.is_dir() or path.is_symlink())


def test_what_a_user_put_beside_results_stays(tmp_path):
    cases = collection(4)
    with kept_beside(tmp_path / "out", [cases], {}, Plain()) as part:
        worked(part, cases)
        (tmp_path / "out.parts" / "notes.txt").write_text("mine")
        (tmp_path / "out.parts" / FOLDER / "log.txt").write_text("mine too")
    assert left_in(tmp_path) == [f"out.parts/{FOLDER}/log.txt", "out.parts/notes.txt"]


def test_files_of_parts_go_only_if_the_result_has_the_same(tmp_path):
    place, result = tmp_path / "out.parts", tmp_path / "out"
    for name, text in {
        f"part0/{FOLDER}/{FACTS}": "{}", "part0/.segcal/a.json": "{}", "part0/a.npy": "1", "part0/b.npy": "another",
        "logs/7/7_0_log.out": "log", "logs/notes.txt": "mine",
    }.items():  # fmt: skip
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text)
    (place / "part0" / "link").symlink_to(tmp_path)
    result.mkdir()
    for name in ("a.npy", "b.npy"):
        (result / name).write_text("1")
    remove_parts(place, result)
    assert left_in(place) == ["logs/notes.txt", "part0/b.npy", "part0/link"]
    for name in left_in(place):
        (place / name).unlink()
    remove_parts(place, result)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]
