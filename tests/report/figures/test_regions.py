from segcal.report.figures.regions import region_figure


def box(middle):
    return {
        "low": middle - 0.02, "lower_quartile": middle - 0.01, "median": middle, "upper_quartile": middle + 0.01,
        "high": middle + 0.02, "outliers": [0.5],
    }  # fmt: skip


def test_every_region_has_a_box_a_pipeline_in_per_cent_and_undefined_ones_are_left_out(texts):
    known = {region: box(0.1) for region in ("all", "right", "boundary", "interior")}
    figure = region_figure(
        {"a": {"ece": {**known, "wrong": {**box(0.1), "median": None}}}, "b": {"ece": known}}, ["b", "a"]
    )
    axis = figure.axes[0]
    assert len(axis.patches) == 8
    medians = {round(float(line.get_ydata()[0]), 6) for line in axis.lines if len(set(line.get_ydata())) == 1}
    assert 10.0 in medians
    found = texts(figure)
    assert {"wrong predictions", "near a boundary", "a", "b"} <= set(found)
