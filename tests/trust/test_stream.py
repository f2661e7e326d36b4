"""A stream of cases: clean, spoiled, interrupted, grouped, of another calibrator."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest

import segcal
from segcal.trust.stream import monitor


def permuted(cases):
    raw = [[np.roll(np.asarray(m), 1, 0) for m in cases.member_logits(case_id)] for case_id in cases.ids]
    return segcal.ArrayCases(raw, ids=[f"bad{k:02d}" for k in range(len(raw))], pooling="mean_logits", kind="logits")


def test_a_clean_stream_stays_quiet_and_a_spoiled_one_does_not(fitted, make_cases):
    clean = monitor(fitted, make_cases(25, seed=50, labelled=False))
    assert clean.applies
    assert clean.verdict.startswith("no sign of a drift in 25 draws: evidence ")
    assert len(clean.evidence) == len(clean.draws) == clean.new == 25
    spoiled = monitor(fitted, permuted(make_cases(12, seed=51)))
    assert not spoiled.applies
    assert spoiled.since == "bad00"
    assert spoiled.verdict.startswith(
        "this calibrator no longer applies: since bad00 the cases differ from the reference"
    )
    assert "fit again on labelled ones like them" in spoiled.verdict
    assert abs(spoiled.deviation) > 3
    assert spoiled.reference_draws == 30


def test_the_file_keeps_the_stream_and_a_second_call_goes_on(fitted, make_cases, tmp_path):
    cases = make_cases(9, seed=52, labelled=False)
    whole = monitor(fitted, cases, tmp_path / "whole.json")
    parts = [monitor(fitted, cases.subset(cases.ids[:n]), tmp_path / "parts.json") for n in (4, 9)]
    assert [each.new for each in parts] == [4, 5]
    assert parts[1].evidence == whole.evidence
    assert (tmp_path / "whole.json").read_bytes() == (tmp_path / "parts.json").read_bytes()
    assert monitor(fitted, cases, tmp_path / "whole.json").new == 0


def test_a_run_that_dies_leaves_what_was_done(fitted, make_cases, tmp_path):
    cases, done = make_cases(6, seed=53, labelled=False), []

    def stop(case_id):
        done.append(case_id)
        if len(done) == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        monitor(fitted, cases, tmp_path / "s.json", progress=stop)
    after = monitor(fitted, cases, tmp_path / "s.json")
    assert after.new == 6 - 3  # the case under way was not counted
    assert after.evidence == monitor(fitted, cases).evidence


def test_cases_of_one_group_are_one_draw_and_are_not_counted_again(fitted, make_cases, tmp_path):
    cases = make_cases(6, seed=54, labelled=False, groups=list("aabbbc"))
    found = monitor(fitted, cases.subset(cases.ids[:5]), tmp_path / "s.json")
    assert [draw.cases for draw in found.draws] == [["case00", "case01"], ["case02", "case03", "case04"]]
    late = make_cases(7, seed=54, labelled=False, groups=list("aabbbca"))
    assert [draw.name for draw in monitor(fitted, late, tmp_path / "s.json").draws] == ["a", "b", "c"]


def test_a_file_of_another_reference_is_refused(fitted, make_cases, tmp_path):
    cases = make_cases(2, seed=56, labelled=False)
    monitor(fitted, cases, tmp_path / "s.json")
    other = segcal.learn_trust(replace(fitted, reference=None), make_cases(12, seed=57, prefix="other"))
    with pytest.raises(segcal.InputError, match=r"s.json belongs to another calibrator or its reference, but a stream"):
        monitor(other, cases, tmp_path / "s.json")


def test_a_reference_of_groups_is_not_compared_with_single_cases(fitted, make_cases):
    pairs = segcal.learn_trust(
        replace(fitted, reference=None),
        make_cases(12, seed=58, prefix="pair", groups=[f"p{k // 2}" for k in range(12)]),
    )
    with pytest.raises(segcal.InputError, match=r"12 cases in groups, .* but the new cases have none. Declare theirs"):
        monitor(pairs, make_cases(2, seed=59, labelled=False))
    assert monitor(pairs, make_cases(2, seed=59, labelled=False, groups=["x", "x"])).new == 1


def test_rates_that_are_no_chances_are_refused(fitted, make_cases):
    with pytest.raises(segcal.InputError, match="stream_rate is 5, but a chance between 0 and 1 is needed"):
        monitor(fitted, make_cases(1, labelled=False), stream_rate=5)


def test_a_reference_without_what_touches_is_compared_without_it(fitted, make_cases):
    kept = fitted.reference
    cases = []
    for case in kept.cases:
        words = case.numbers.split()
        per_class = np.array(words[4:]).reshape(3, -1)[:, :-1]  # as an older segcal wrote it
        cases.append(msgspec.structs.replace(case, numbers=" ".join([*words[:4], *per_class.ravel()])))
    older = replace(fitted, reference=msgspec.structs.replace(kept, cases=tuple(cases)))
    found = monitor(older, make_cases(8, seed=60, labelled=False))
    assert found.applies
    assert all(draw.numbers.split()[-3:] == ["nan"] * 3 for draw in found.draws)
