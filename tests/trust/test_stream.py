"""A stream of cases: clean, spoiled, interrupted, grouped, of another calibrator; its file, and its alarms."""

import json
from dataclasses import replace

import msgspec
import numpy as np
import pytest

import segcal
from segcal.errors import ArtifactError
from segcal.fitting.evidence import FitEvidence
from segcal.trust.alarms import Alarms, smoothing
from segcal.trust.atypical import Statistics
from segcal.trust.stream import StreamDraw, monitor, read_state, write_state

TITLES = ("background", "organ", "lesion")
ACT = "Label some of these cases and fit again."
DRAW = StreamDraw("\0a", ["a"], "1 2", 0.5, "0.5 0.2", 0.5, "entropy", 1.0, None)


def permuted(cases):
    raw = [[np.roll(np.asarray(m), 1, 0) for m in cases.member_logits(case_id)] for case_id in cases.ids]
    return segcal.ArrayCases(raw, ids=[f"bad{k:02d}" for k in range(len(raw))], pooling="mean_logits", kind="logits")


def test_a_clean_stream_stays_quiet_and_a_spoiled_one_does_not(fitted, make_cases):
    clean = monitor(fitted, make_cases(25, seed=50, labelled=False))
    assert clean.applies
    assert clean.verdict.startswith("no sign of a drift in 25 groups: evidence ")
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


def test_known_cases_are_counted_and_unusual_ones_are_named(fitted, make_cases, tmp_path):
    cases = permuted(make_cases(6, seed=51))
    first = monitor(fitted, cases.subset(cases.ids[:4]), tmp_path / "s.json")
    second = monitor(fitted, cases, tmp_path / "s.json")
    assert [(each.new, each.known) for each in (first, second)] == [(4, 0), (2, 4)]
    assert "left out" not in str(first)
    assert "\n4 already known by name and left out, also if their files have changed\n" in str(second)
    assert [draw.name for draw in second.unusual] == [f"bad{k:02d}" for k in range(6)]
    draw = second.unusual[1]
    line = f"unusual: bad01, p {draw.rarity:.2g}, most in {draw.unusual} ({draw.deviation:+.1f} deviations)"
    assert str(second).split("\n")[1] == line
    assert monitor(fitted, cases.subset(cases.ids[:4]), tmp_path / "s.json").draws[0].name == "bad00"


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


def test_a_reference_of_groups_is_not_compared_with_single_cases(fitted, make_cases):
    pairs = segcal.learn_trust(
        replace(fitted, reference=None),
        make_cases(12, seed=58, prefix="pair", groups=[f"p{k // 2}" for k in range(12)]),
    )
    with pytest.raises(segcal.InputError, match="stream_rate is 5, but a chance between 0 and 1 is needed"):
        monitor(pairs, make_cases(1, labelled=False), stream_rate=5)
    with pytest.raises(segcal.InputError, match=r"12 cases in groups, .* but the new cases have none. Declare theirs"):
        monitor(pairs, make_cases(2, seed=59, labelled=False))
    assert monitor(pairs, make_cases(2, seed=59, labelled=False, groups=["x", "x"])).new == 1


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


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"version": 3}, "has version 3, but this segcal reads 2. Update segcal"),
        ({"version": 1}, "has version 1, whose p-values are not right .* goes on with 2. Name a new file"),
        ({"draws": [{"name": "a"}]}, "is not readable as a stream"),
        ({"reference": "x"}, "belongs to another calibrator or its reference, but a stream is compared with one alone"),
    ],
)
def test_a_file_that_was_changed_is_refused(tmp_path, change, text):
    path = tmp_path / "s.json"
    write_state(path, "digest", [DRAW])
    assert read_state(path, "digest") == [DRAW]
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | change))
    with pytest.raises((ArtifactError, segcal.InputError), match=text):
        read_state(path, "digest")


def statistics(frequencies, prefix="new"):
    """Return statistics that have expected sizes alone."""
    names = tuple(str(number) for number in range(6))
    rows = np.concatenate([np.zeros((len(frequencies), 3)), np.log(frequencies)], axis=1)
    return Statistics(tuple(f"\0{prefix}{number}" for number in range(len(rows))), names, rows)


def usual(rng, count, lesion=0.002):
    organ, share = rng.uniform(0.1, 0.3, count), lesion * rng.lognormal(0, 0.5, count)
    return np.stack([1 - organ - share, organ, share], 1)


def alarms(rng, count=30, scarce=None):
    return Alarms(TITLES, statistics(usual(rng, count), "ref"), 24, {2: 1} if scarce is None else scarce)


def test_clean_streams_raise_an_alarm_no_more_often_than_stated():
    rng, raised, tries = np.random.default_rng(0), 0, 100
    for number in range(tries):
        known = alarms(rng, 20)
        raised += bool(known.raised(statistics(usual(rng, 40)), f"{number}", 0.2))
    assert 0 < raised / tries <= 0.2 + 0.02


def test_a_scarce_class_that_becomes_frequent_is_named_with_its_groups_and_its_shares():
    for seed in range(4):
        rng = np.random.default_rng(seed)
        known = alarms(rng)
        stream = np.concatenate([usual(rng, 5), usual(rng, 12, 0.03)])
        found = known.raised(statistics(stream), "d", 0.01)
        own = next(each for each in found if each.startswith("lesion was in 1 of 24 groups of the fit and has become "))
        since = int(own.split(" since new")[1].split(",")[0])
        now, was = 100 * stream[since:, 2].mean(), 100 * np.exp(known.known.rows[:, 5]).mean()
        assert f"frequent: {now:.3g} % of the voxels since new{since}, {was:.3g} % in the reference cases. {ACT}" in own
        assert abs(since - 5) <= 1


@pytest.mark.parametrize(
    ("before", "after", "scarce"),
    [
        (0.002, 0.03, {}),  # a class with evidence
        (0.00001, 0.0003, None),  # too few voxels to matter
        (0.02, 0.03, None),  # more, but not twice as many
    ],
)
def test_a_class_that_does_not_matter_is_not_named(before, after, scarce):
    rng = np.random.default_rng(1)
    known = alarms(rng, scarce=scarce)
    known = replace(known, known=statistics(usual(rng, 60, before), "ref"))
    assert not [each for each in known.raised(statistics(usual(rng, 60, after)), "d", 0.01) if "lesion was" in each]


def test_a_new_composition_between_the_clusters_of_the_reference_is_an_alarm():
    for seed in range(4):
        rng = np.random.default_rng(seed)
        organ = np.where(rng.random(36) < 0.5, 0.1, 0.8) + rng.uniform(0, 0.05, 36)
        known = Alarms(TITLES, statistics(np.stack([0.99 - organ, organ, np.full(36, 0.01)], 1), "ref"), 24, {})
        organ = rng.uniform(0.42, 0.48, 9)
        found = known.raised(statistics(np.stack([0.99 - organ, organ, np.full(9, 0.01)], 1)), "d", 0.01)
        assert len(found) == 1
        what = "class frequencies since new0 are unlike those of any part of the reference cases, most that of "
        assert found[0].startswith(what)
        assert found[0].endswith(f" there. {ACT}")


def test_ties_are_broken_by_uniform_numbers_that_stay_the_same():
    assert smoothing("digest", "case") == smoothing("digest", "case")
    found = [smoothing("digest", f"case{number}") for number in range(400)]
    assert np.quantile(found, [0.1, 0.5, 0.9]) == pytest.approx([0.1, 0.5, 0.9], abs=0.06)


def with_evidence(fitted, class_groups):
    found = FitEvidence(8, class_groups, (1, 1, 1))
    return replace(fitted, certificate=replace(fitted.certificate, evidence=found))


def larger(cases):
    """Return the cases with much more of the class core."""
    raw = [[np.asarray(m) + np.array([0, 0, 6.0])[:, None, None] for m in cases.member_logits(i)] for i in cases.ids]
    ids = [f"more{number:02d}" for number in range(len(raw))]
    return segcal.ArrayCases(raw, ids=ids, pooling="mean_logits", kind="logits")


def test_monitor_and_trust_raise_them_and_stay_quiet_on_clean_cases(fitted, make_cases, tmp_path):
    known = with_evidence(fitted, (8, 8, 1))
    clean, spoiled = make_cases(15, seed=70, labelled=False), larger(make_cases(10, seed=71))
    assert monitor(known, clean, tmp_path / "s.json").alarms == []
    assert segcal.trust(known, clean).alarms == []
    watched = monitor(known, spoiled, tmp_path / "s.json")
    assert not watched.applies
    trusted = segcal.trust(known, spoiled)
    for found in (watched.alarms, trusted.alarms):
        assert any(each.startswith("core was in 1 of 8 groups of the fit and has become frequent: ") for each in found)
        assert all(each.endswith(ACT) for each in found)
    assert trusted.to_plain()["alarms"] == trusted.alarms
    assert "core was in 1 of 8 groups" in " ".join(str(trusted).split())


def test_a_calibrator_without_evidence_and_a_file_of_before_go_on(fitted, make_cases, tmp_path):
    older = replace(fitted, certificate=replace(fitted.certificate, evidence=None))
    spoiled = larger(make_cases(10, seed=71))
    assert not [each for each in monitor(older, spoiled).alarms if "of the fit" in each]
    monitor(older, spoiled.subset(spoiled.ids[:2]), tmp_path / "s.json")
    state = json.loads((tmp_path / "s.json").read_text())
    assert all(draw.pop("apart_p") < 0.2 for draw in state["draws"])
    (tmp_path / "s.json").write_text(json.dumps(state))
    assert [draw.apart_p for draw in monitor(older, spoiled, tmp_path / "s.json").draws[:2]] == [1, 1]


def test_cases_without_groups_raise_none_beside_a_reference_of_groups(fitted, make_cases):
    groups = [f"p{number // 2}" for number in range(30)]
    own = make_cases(30, seed=2, prefix="ref", groups=groups)
    known = segcal.learn_trust(with_evidence(fitted, (8, 8, 1)), own)
    assert segcal.trust(known, larger(make_cases(10, seed=71))).alarms == []


def test_scarce_is_a_class_in_fewer_groups_than_the_fit_asks_for(fitted):
    def scarce(*groups, **changes):
        return Alarms.of(replace(with_evidence(fitted, groups), **changes), statistics(np.ones((1, 3))), TITLES).scarce

    assert scarce(8, 3, 2) == {2: 2}
    assert scarce(8, 3, 0, config=replace(fitted.config, evidence=5)) == {1: 3, 2: 0}
    assert scarce(8, 3, 2, config=replace(fitted.config, evidence=0)) == {2: 2}
