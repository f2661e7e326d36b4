from segcal.report.figures.corruptions import corruption_figure


def test_every_kind_is_named_above_its_picture(texts, picture):
    figure = corruption_figure(dict.fromkeys(("clean", "noise", "fog", "mine"), picture))
    assert {"clean", "Gaussian noise", "fog", "mine"} <= set(texts(figure))
    assert sum(len(axis.images) for axis in figure.axes) == 4
