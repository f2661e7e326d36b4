import numpy as np

from segcal.report.figures.temperature import temperature_figure
from segcal.report.pictures import encode_values


def test_all_temperatures_share_one_scale(texts, picture):
    maps = [encode_values(np.full((12, 20), 0.5) + np.eye(12, 20)), encode_values(np.full((12, 20), 4.0))]
    figure = temperature_figure(
        [{"case": str(k), "image": picture, "temperature": each} for k, each in enumerate(maps)]
    )
    norms = {(axis.images[0].norm.vmin, axis.images[0].norm.vmax) for axis in figure.axes[2:4]}
    assert norms == {(0.5, 4.0)}
    assert "temperature: above 1 is softened" in texts(figure)
