import pytest
import torch

from segcal.calibrators import make_calibrator
from segcal.report.figures.shift import shift_figure


def heights(axis):
    return [bar.get_height() for bar in axis.patches]


def test_a_calibrator_that_ignores_the_shift_gives_one_answer(texts):
    figure = shift_figure(make_calibrator("ts", 3), "ts", ("a", "b", "c"))
    answers = heights(figure.axes[2])
    assert answers[:3] == pytest.approx(answers[3:], abs=1e-9)
    found = " ".join(texts(figure))
    assert "not the same" not in found
    assert "a" in texts(figure)


def test_one_that_sees_it_gives_two(texts):
    calibrator = make_calibrator("ms", 3)
    with torch.no_grad():
        for parameter in calibrator.parameters():
            if parameter.ndim > 1:
                parameter[..., 0, :] += 0.3
    figure = shift_figure(calibrator, "ms")
    answers = heights(figure.axes[2])
    assert max(abs(a - b) for a, b in zip(answers[:3], answers[3:], strict=True)) > 0.1
    assert heights(figure.axes[1])[:3] == heights(figure.axes[1])[3:]
    assert "not the same" in " ".join(texts(figure))


def test_of_many_classes_the_likeliest_are_shown():
    assert len(heights(shift_figure(make_calibrator("ts", 30)).axes[2])) == 16
