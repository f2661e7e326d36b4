import numpy as np

from segcal.report.figures.flips import flip_figure
from segcal.report.pictures import encode_indices


def test_flipped_voxels_are_marked_and_counted_by_distance(texts, classes):
    flipped = np.zeros((12, 20), int)
    flipped[3, 4] = 1
    curve = {"distance": [0, 1], "voxels": [10, 0], "harmful": [2, 0], "beneficial": [1, 0], "neutral": [0, 0]}
    example = {"case": "a", "flips": 1234, "image": None, "labels": classes, "flipped": encode_indices(flipped)}
    figure = flip_figure({"pipeline": "ms(mean_logits)", "curve": curve, "example": example})
    layer = figure.axes[2].images[-1].get_array()
    assert np.argwhere(layer[..., 3] > 0).tolist() == [[3, 4]]
    assert [bar.get_height() for bar in figure.axes[3].patches] == [20, 0, 10, 0, 0, 0]
    assert "1,234 voxels that changed their class" in texts(figure)
