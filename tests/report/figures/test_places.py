"""Files of the diagrams that the page draws itself."""

from segcal.report.figures.places import place_figures

CURVE = {"count": [10, 90], "confidence": [0.4, 0.9], "accuracy": [0.5, 0.8], "low": [0.4, 0.7], "high": [0.6, 0.9]}
PARTS = {"all": CURVE, "foreground": CURVE, "bands": [CURVE, CURVE], "classes": [CURVE]}
PLACE = {
    "baseline": "b",
    "chosen": "c",
    "background": True,
    "classes": ["x", "<y>$"],
    "shown_classes": [1],
    "curves": {"b": PARTS, "c": PARTS},
    "bands": {"b": [{"from": 0.0}, {"from": 3.0}]},
    "cases": {"dice": {"b": [0.5], "c": [0.5]}, "ece": {"b": [0.1], "c": [None]}},
}


def test_every_part_has_its_diagram_before_and_after_and_is_a_file_only(texts):
    found = {each.name: each for each in place_figures({"heart": PLACE}, {})}
    parts = ("all", "foreground", "band0", "band1", "class0")
    assert set(found) == {*(f"before_after_heart_{part}" for part in parts), "scatter_heart"}
    assert not any(each.on_page for each in found.values())
    shown = texts(found["before_after_heart_class0"].draw())
    assert {"before", "after", "probability of class <y>$", "share that is this class"} <= set(shown)


def test_a_class_that_is_no_structure_has_no_foreground():
    names = [each.name for each in place_figures({"heart": {**PLACE, "background": False}}, {})]
    assert "before_after_heart_foreground" not in names


def test_without_a_comparison_there_is_nothing_to_draw():
    assert place_figures({"heart": {**PLACE, "baseline": None}}, {}) == []


def test_the_panel_has_all_tasks_and_the_rule(texts):
    role = {"pipeline": "ts", "ace": {"value": 0.02}, "curve": CURVE}
    (panel,) = place_figures(
        {}, {"reliability": {"rule": "The rule.", "tasks": {"a": {"best": role}, "b": {"best": role}}}}
    )
    assert {"ts (2.0 %)", "The rule.", "a", "b"} <= set(texts(panel.draw()))
