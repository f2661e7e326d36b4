from segcal.report.figures.study_curves import binning_figure, size_figure


def estimate(value):
    return {"value": value, "low": value - 0.01, "high": value + 0.01}


def test_sizes_are_drawn_as_change_with_a_band(texts):
    points = [{"n": n, "value": estimate(0.1), "change": estimate((10 - n) / 100)} for n in (2, 10)]
    figure = size_figure({"reference": 10, "pipelines": {"ts": {"nll": points}, "ms": {"nll": points}}})
    axis = figure.axes[0]
    assert axis.lines[1].get_xydata().tolist() == [[2, 0.08], [10, 0]]
    assert len(axis.collections) == 2
    assert "change against n = 10" in texts(figure)


def test_bins_are_drawn_for_the_pipelines_asked_for_and_undefined_ones_leave_a_gap(texts):
    unknown = {"value": None, "low": None, "high": None}
    numbers = {
        "ece": {"20": estimate(0.1), "50": estimate(0.2)},
        "ace": {"15": unknown, "20": estimate(0.3)},
    }
    figure = binning_figure({"pipelines": {"a": numbers, "b": numbers}}, shown=["b", "gone"])
    assert figure.axes[0].lines[0].get_xydata().tolist() == [[20, 0.1], [50, 0.2]]
    assert "b" in texts(figure)
    assert "a" not in texts(figure)
