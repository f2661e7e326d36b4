from segcal.report.figures.detection import detection_figure


def test_curves_are_the_oracle_s_and_marks_are_learned_selectors(texts):
    learned = {"s": {"recall": 0.4, "ece": 0.03}, "nothing found": {"recall": None, "ece": 0.1}}
    figure = detection_figure({"oracle": {"ts": [0.1, 0.05, 0.0]}, "learned": learned}, [0, 0.5, 1])
    oracle, mark = figure.axes[0].lines
    assert oracle.get_xydata().tolist() == [[0, 10], [50, 5], [100, 0]]
    assert mark.get_xydata().tolist() == [[40, 3]]
    assert "ts, oracle" in texts(figure)
    assert not any("nothing found" in text for text in texts(figure))
