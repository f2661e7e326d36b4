import numpy as np
import pytest
import torch

import segcal

torchmetrics = pytest.importorskip("torchmetrics", reason="torchmetrics is not installed: make setup-frameworks")
pytestmark = [pytest.mark.frameworks, pytest.mark.filterwarnings("ignore")]

from segcal.integrations.torchmetrics import SegmentationCalibration  # noqa: E402

LOGITS = 3 * torch.randn(6, 3, 7, 5, generator=torch.Generator().manual_seed(0))
LABELS = torch.randint(0, 3, (6, 7, 5), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(("name", "average"), [("ece", None), ("ece", "voxels"), ("ace", None), ("nll", None)])
def test_it_is_the_metric_of_segcal_however_it_is_divided(name, average):
    expected = getattr(segcal.metrics, name)(LOGITS, LABELS, average=average)
    whole, first, second = (SegmentationCalibration(name, 3, kind="logits", average=average) for _ in range(3))
    whole.update(LOGITS, LABELS)
    first.update(LOGITS[:1], LABELS[:1])
    second.update(LOGITS[1:], LABELS[1:])
    first.merge_state(second)
    assert float(whole.compute()) == pytest.approx(expected, rel=1e-12)
    assert float(first.compute()) == pytest.approx(expected, rel=1e-12)
    assert whole.higher_is_better is False
    assert float(whole(LOGITS[:2], LABELS[:2])) == pytest.approx(
        getattr(segcal.metrics, name)(LOGITS[:2], LABELS[:2], average=average), rel=1e-12
    )
    whole.reset()
    assert np.isnan(float(whole.compute()))


@pytest.mark.parametrize("name", ["ece", "ace", "nll", "dice"])
def test_several_raters_add_up_over_batches(name):
    maps = torch.randint(0, 3, (6, 4, 7, 5), generator=torch.Generator().manual_seed(2))
    wanted = segcal.evaluate(segcal.ArrayCases(LOGITS, maps, raters="axis"), metrics=[name]).before[name].value
    shares = torch.stack([(maps == c).float().mean(1) for c in range(3)], 1)
    for labels, form in ((maps, "axis"), (shares, "shares")):
        if (name, form) == ("dice", "shares"):
            continue
        metric = SegmentationCalibration(name, 3, kind="logits", raters=form, num_raters=4)
        metric.update(LOGITS[:4], labels[:4])
        metric.update(LOGITS[4:], labels[4:])
        assert float(metric.compute()) == pytest.approx(wanted, rel=1e-6)
        curve = metric.reader.curve(metric._row())
        assert curve.count.sum() == 4 * LABELS.numel()
        assert curve.confidence.sum() == pytest.approx(4 * float(LOGITS.softmax(1).amax(1).sum()), rel=1e-5)


def test_a_collection_and_a_state_dict():
    names = ("ece", "nll", "brier")
    both = torchmetrics.MetricCollection({name: SegmentationCalibration(name, 3, kind="logits") for name in names})
    both.update(LOGITS, LABELS)
    for name, value in both.compute().items():
        assert float(value) == pytest.approx(getattr(segcal.metrics, name)(LOGITS, LABELS), rel=1e-12)
    one = SegmentationCalibration("ece", 3, kind="logits")
    one.persistent(True)
    one.update(LOGITS, LABELS)
    again = SegmentationCalibration("ece", 3, kind="logits")
    again.persistent(True)
    again.load_state_dict(one.state_dict())
    assert torch.equal(again.counts, one.counts)


def test_counts_go_on_past_the_last_whole_number_of_float32():
    metric = SegmentationCalibration("ece", 2, kind="logits", average="voxels")
    logits, labels = torch.tensor([[[2.0, 2.0], [0.0, 0.0]]]), torch.tensor([[0, 1]])
    metric.update(logits, labels)
    counted = metric.counts.clone()
    metric.counts += counted * (2**24 - 1)
    metric.sums += metric.sums * (2**24 - 1)
    before = float(metric.compute())
    metric.update(logits, labels)
    assert int(metric.counts[-2 * metric.reader.bins :].reshape(2, -1)[0].sum()) == 2 * (2**24 + 1)
    confidence = float(torch.sigmoid(torch.tensor(2.0, dtype=torch.float64)))
    # Both voxels have this confidence, one of them is right: they share a bin.
    assert before == pytest.approx(confidence - 0.5, abs=1e-6)
    assert float(metric.compute()) == pytest.approx(confidence - 0.5, abs=1e-6)


def test_two_ranks_are_one(tmp_path):
    """Each rank syncs through torch's own process group."""
    torch.multiprocessing.start_processes(
        _rank, (str(tmp_path / "store"), str(tmp_path)), nprocs=2, start_method="fork"
    )
    found = [float((tmp_path / f"{rank}.txt").read_text()) for rank in range(2)]
    assert found == [pytest.approx(segcal.metrics.ace(LOGITS, LABELS), rel=1e-12)] * 2


def _rank(rank, store, folder):
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    metric = SegmentationCalibration("ace", 3, kind="logits")
    part = slice(0, 2) if rank == 0 else slice(2, 6)
    metric.update(LOGITS[part], LABELS[part])
    with open(f"{folder}/{rank}.txt", "w") as file:  # noqa: PTH123
        file.write(repr(float(metric.compute())))
    torch.distributed.destroy_process_group()


def test_a_plot_is_the_reliability_diagram():
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: make setup-frameworks")
    metric = SegmentationCalibration("ece", 3, kind="logits", bins=5)
    metric.update(LOGITS, LABELS)
    figure, axes = metric.plot()
    assert figure.axes == axes
    assert "5 bins" in axes[0].get_title()
    assert metric.plot([torch.tensor(0.1), torch.tensor(0.2)])[0] is not None
