import numpy as np
import torch
from segcal.cases.check_case import check_member

from segcal.cases import open_cases
from segcal.cases.glance import digest_of


def test_a_good_file_gives_its_winners_and_a_digest(npy_folder):
    predictions, _, arrays = npy_folder
    found = check_member(open_cases(predictions, kind="logits"), "a1", 0, None)
    assert found.problems == []
    assert np.array_equal(found.decision, arrays["a1"].argmax(0))
    assert found.digest == digest_of(torch.from_numpy(arrays["a1"]))


def test_a_file_that_cannot_be_read_gives_one_error(npy_folder):
    predictions, _, _ = npy_folder
    (predictions / "a1.npy").write_bytes(b"broken")
    found = check_member(open_cases(predictions, kind="logits"), "a1", 0, None)
    assert [problem.severity for problem in found.problems] == ["error"]
    assert found.decision is None


def test_another_size_than_the_first_member_is_an_error_that_names_both(npy_folder):
    predictions, _, _ = npy_folder
    found = check_member(open_cases(predictions, kind="logits"), "a1", 0, torch.zeros(4, 6, dtype=torch.int64))
    assert [problem.text for problem in found.problems] == [
        f"{predictions / 'a1.npy'} has space (4, 5), but the first member has (4, 6). "
        "Members of one ensemble must agree: export this one again or leave it out."
    ]
