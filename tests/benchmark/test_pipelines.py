"""Pipelines: their names, their promises, and the row groups of Table 4."""

from msgspec import convert, to_builtins

from segcal.benchmark.pipelines import LISTS, OTHER_ROWS, Pipeline, in_row_groups, paper_pipelines
from segcal.calibrators import CALIBRATORS


def test_titles_are_readable_in_text_and_as_in_the_paper_in_latex():
    assert Pipeline("mean_logits", "cms_ap").title == "cms_ap(mean_logits)"
    assert Pipeline("mean_logits", "cms_ap").latex == r"CMS$_\mathrm{ap}$($\bar{z}$)"
    assert Pipeline("single", "identity").latex == "$p_0$"


def test_promises_come_from_the_calibrator():
    assert Pipeline("mean_logits", "ms").translation_invariant is False
    assert Pipeline("mean_logits", "dc").translation_invariant is True
    assert [Pipeline("mean_probs", name).preserves for name in ("cdc", "cms_ap", "cms_op")] == [None, "argmax", "order"]


def test_plain_data_gives_the_pipeline_back():
    pipeline = Pipeline("mean_logits", "ms", {"canonical": True})
    assert convert(to_builtins(pipeline), Pipeline) == pipeline
    assert pipeline.title == "ms(mean_logits, canonical=True)"


def test_more_is_what_the_paper_does_not_have_and_all_is_both(monkeypatch):
    monkeypatch.setitem(CALIBRATORS, "mine", CALIBRATORS["ts"])
    more = [pipeline.title for pipeline in LISTS["more"]()]
    paper = {pipeline.title for pipeline in paper_pipelines()}
    assert more[:2] == ["identity(mean_logits)", "ts(mean_logits)"]
    assert "mine(mean_logits)" in more
    assert not set(more[2:]) & paper
    every = LISTS["all"]()
    assert len(every) == len(set(every)) == len(paper) + len(more) - 2


def test_dirichlet_calibration_of_mean_logits_stands_in_two_groups():
    groups = in_row_groups([*paper_pipelines(), Pipeline("single", "ts")])
    twice = [title for title, rows in groups.items() if Pipeline("mean_logits", "dc") in rows]
    assert [title[:3] for title in twice] == ["(b)", "(f)"]
    assert groups[OTHER_ROWS] == [Pipeline("single", "ts")]


def test_groups_without_rows_are_left_out():
    assert list(in_row_groups([Pipeline("mean_probs", "ts")])) == [
        "(e) Standard temperature-based calibrators (order-preserving, TI): TS, ETS"
    ]
