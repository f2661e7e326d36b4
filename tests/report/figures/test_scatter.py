from segcal.report.figures.scatter import scatter_figure


def test_cases_without_a_value_are_left_out_and_scales_begin_at_zero(texts):
    figure = scatter_figure({"before": [(0.5, 0.1), (None, 0.2)], "after": [(0.5, 0.05)]}, "heart")
    axis = figure.axes[0]
    assert [each.get_offsets().tolist() for each in axis.collections] == [[[0.5, 10.0]], [[0.5, 5.0]]]
    assert axis.get_xlim() == (0, 1)
    assert axis.get_ylim()[0] == 0
    assert {"before", "after", "heart"} <= set(texts(figure))
