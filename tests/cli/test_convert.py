import numpy as np

from segcal import open_cases


def test_the_store_holds_what_came_in_with_labels_and_groups(folders, run, tmp_path):
    call = ["convert", folders.predictions, *folders.options, "--labels", folders.labels, "-o", tmp_path / "store"]
    done = run(*call, "--groups", "([abc])\\d")
    assert done.out == f"6 cases written to {tmp_path / 'store'}\n"
    cases = open_cases(tmp_path / "store")
    assert cases.groups == {name: name[0] for name in folders.scores}
    for case in cases:
        np.testing.assert_allclose(case.logits.numpy(), folders.scores[case.id], atol=0.02)
        assert np.array_equal(case.logits.numpy().argmax(0), folders.scores[case.id].argmax(0))
        assert np.array_equal(case.labels.numpy(), np.load(folders.labels / f"{case.id}.npy"))


def test_what_is_there_is_not_written_again(folders, run, files_of, tmp_path):
    call = ["convert", folders.predictions, *folders.options, "-o", tmp_path / "store"]
    run(*call)
    before = files_of(tmp_path / "store")
    (tmp_path / "store" / "b1.safetensors").unlink()
    done = run(*call)
    assert done.out == f"1 case written to {tmp_path / 'store'}, 5 were there already\n"
    assert files_of(tmp_path / "store") == before


def test_members_are_pooled(folders, make_folders, run, tmp_path):
    other = make_folders(folder="second", seed=6)
    call = ["convert", folders.predictions, other.predictions, "--kind", "logits", "--pool", "mean_logits"]
    assert run(*call, "-o", tmp_path / "store", "--json").document["written"] == sorted(folders.scores)
    cases = open_cases(tmp_path / "store")
    assert cases.pooling == "mean_logits"
    expected = (folders.scores["a1"] + other.scores["a1"]) / 2
    np.testing.assert_allclose(cases.read("a1").logits.numpy(), expected, atol=0.02)
