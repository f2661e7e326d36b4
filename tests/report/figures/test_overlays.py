from segcal.report.figures.overlays import overlay_figure


def test_inputs_stand_above_the_same_with_the_truth_over_them(texts, classes, picture, nasty):
    cases = [{"case": nasty, "image": picture, "truth": classes}, {"case": "b", "truth": classes}]
    figure = overlay_figure(cases, ("background", nasty, "road"))
    assert [len(axis.images) for axis in figure.axes] == [1, 1, 2, 2]
    found = texts(figure)
    assert "road" in found
    assert "background" not in found


def test_without_background_every_class_is_named(texts, classes):
    assert "sky" in texts(overlay_figure([{"case": "a", "truth": classes}], ("sky", "road"), background=False))
