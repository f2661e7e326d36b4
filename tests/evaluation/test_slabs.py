import pytest
import torch

from segcal import ArrayCases, Context, InputError, make_calibrator
from segcal.calibrators.conic import Conic
from segcal.cases import Case
from segcal.evaluation.slabs import as_seen, calibrated_scores, score_slabs


def normal(*shape, seed=0, dtype=torch.float64):
    return (4 * torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)).to(dtype)


@pytest.mark.parametrize("name", ["ts", "cms_ap", "lts", "lts_ti"])
@pytest.mark.parametrize(("space", "values"), [((41, 23), 60), ((9, 37), 700), ((3, 31, 12), 2500), ((13, 6, 7), 60)])
def test_slabs_give_what_the_whole_gives(name, space, values, randomise):
    calibrator = randomise(make_calibrator(name, 5))
    case = Case("a", normal(5, *space))
    whole = calibrator.scores(case.logits[None])[0].detach()
    found = calibrated_scores(calibrator, case, values=values)
    assert not found.requires_grad
    torch.testing.assert_close(found, whole, rtol=1e-11, atol=1e-11)


def test_voxels_without_space_and_in_one_row_are_calibrated_too(randomise):
    calibrator = randomise(make_calibrator("cms_ap", 5))
    for shape in ((5,), (5, 1000)):
        logits = normal(*shape)
        expected = calibrator.scores(logits[None])[0].detach()
        torch.testing.assert_close(calibrated_scores(calibrator, Case("a", logits), values=100), expected)


def test_slabs_of_full_3d_kernels_and_of_images_equal_the_whole(randomise):
    volume = randomise(make_calibrator("lts_ti", 3, full_3d=True))
    logits = normal(3, 17, 8, 7)
    expected = volume.scores(logits[None])[0].detach()
    found = calibrated_scores(volume, Case("a", logits), values=200)
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)
    pictured = randomise(make_calibrator("lts_ti", 3, image_channels=2))
    case = Case("a", normal(3, 40, 9), image=normal(2, 40, 9, seed=1))
    expected = pictured(case.logits[None], case.context)[0].detach()
    found = calibrated_scores(pictured, case, values=200).log_softmax(0)
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)


def test_slabs_are_as_small_as_asked_for(randomise, monkeypatch):
    calibrator = randomise(make_calibrator("lts_ti", 5))
    seen = []
    scores = calibrator.scores
    monkeypatch.setattr(calibrator, "scores", lambda logits, *more: seen.append(logits.shape) or scores(logits, *more))
    calibrated_scores(calibrator, Case("a", normal(5, 100, 20)), values=1000)
    assert seen == [(1, 5, 14, 20)] + [(1, 5, 18, 20)] * 8 + [(1, 5, 14, 20)]  # ten rows, and four on each side


def test_a_calibrator_that_sees_the_whole_image_gets_it(randomise):
    calibrator = randomise(make_calibrator("ibts", 5))
    logits = normal(5, 40, 23)
    expected = calibrator.scores(logits[None])[0].detach()
    assert torch.equal(calibrated_scores(calibrator, Case("a", logits), values=100), expected)


@pytest.mark.parametrize(("given", "computed"), [(torch.float16, torch.float32), (torch.float64, torch.float64)])
def test_half_types_are_computed_in_float32(given, computed):
    found = calibrated_scores(make_calibrator("ts", 3), Case("a", normal(3, 6, 7, dtype=given)))
    assert found.dtype == computed


def test_a_shift_is_added_slab_by_slab():
    case, shift = Case("a", normal(3, 30, 7, dtype=torch.float32)), normal(1, 30, 7, seed=1)
    slabs = list(score_slabs(make_calibrator("identity", 3), case, torch.float64, shift, values=100))
    assert len(slabs) > 3
    for where, logits, scores in slabs:
        assert torch.equal(logits[0], (case.logits.double() + shift)[where])
        assert scores.dtype == torch.float64


def test_logits_that_do_not_fit_are_refused():
    with pytest.raises(InputError, match=r"logits has shape .1, 4, 6., but this calibrator has 3 classes"):
        calibrated_scores(make_calibrator("ts", 3), Case("a", normal(4, 6)))


@pytest.mark.parametrize(("by_class", "space"), [(False, (61, 47)), (True, (5, 50, 43))])
def test_slabs_are_told_of_the_whole_image_and_of_the_members(by_class, space, randomise):
    calibrator = randomise(Conic(3, by_class, contexts=["disagreement", "gap_near", "share_near", "gap_image"]))
    generator = torch.Generator().manual_seed(0)
    logits = 4 * torch.randn(3, *space, generator=generator)
    case = Case("a", logits, disagreement=torch.rand(space, generator=generator))
    whole = calibrator.scores(logits[None], case.context)[0].detach()
    parts = list(score_slabs(calibrator, case, values=logits.numel() // 4))
    assert len(parts) > 3
    found = calibrated_scores(calibrator, case, values=logits.numel() // 4)
    torch.testing.assert_close(found, whole, rtol=0, atol=1e-4)
    # It does see the image: a part alone has another mean.
    half = logits[..., : space[-1] // 2]
    alone = calibrator.scores(half[None], Context(disagreement=case.disagreement[None, ..., : space[-1] // 2]))[0]
    assert float((alone.detach()[..., :10] - whole[..., :10]).abs().max()) > 1e-3


def test_cases_say_where_members_disagree_only_to_those_who_look(randomise):
    members = [torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(k)) for k in range(2)]
    cases = ArrayCases([members], pooling="mean_logits", kind="logits")
    assert as_seen(cases, make_calibrator("ts", 3)).read("0").disagreement is None
    assert as_seen(cases, Conic(3, contexts=["disagreement"])).read("0").disagreement.shape == (4, 5)
