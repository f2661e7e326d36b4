"""The calibration card: its numbers, what it refuses, and that every form says the same."""

import datetime
import hashlib
import json
import re

import msgspec
import numpy as np
import pytest

import segcal
from segcal.errors import InputError
from segcal.report.card_document import as_html, as_json, as_markdown, blocks


def make_cases(seed, count, prefix, **options):
    rng = np.random.default_rng(seed)
    logits = 3 * rng.normal(size=(count, 3, 11, 13))
    labels = (logits / 2 + rng.gumbel(size=logits.shape)).argmax(1)
    ids = [f"{prefix}{number}" for number in range(count)]
    return segcal.ArrayCases(logits=list(logits), labels=list(labels), ids=ids, **options)


@pytest.fixture(scope="module")
def fitted():
    return segcal.learn_trust(segcal.fit("ts", make_cases(0, 10, "fit ")), make_cases(2, 11, "kept "))


@pytest.fixture(scope="module")
def result(fitted):
    return segcal.evaluate(make_cases(1, 7, "new "), fitted, metrics=["nll", "ece", "ace", "dice"])


def test_its_numbers_are_those_of_the_evaluation_and_its_cases_are_hashes(fitted, result):
    card = segcal.card(fitted, result)
    (group,) = card.performance
    assert (group.subgroup, group.cases) == ("all held-out cases", 7)
    assert [one.type for one in group.metrics] == ["nll", "dice", "ece"]  # ace pools voxels over cases
    for one in group.metrics:
        numbers = result.before[one.type], result.after[one.type], result.change[one.type]
        assert (one.before, one.after, one.change) == numbers
    assert card.level == result.level
    # Cases are hashes, and their names stand nowhere.
    expected = {hashlib.sha256(f"{fitted.fingerprint}/fit {n}".encode()).hexdigest()[:16] for n in range(10)}
    assert set(card.calibration_data.case_sha256) == expected
    assert (card.calibration_data.cases, card.tuning_data.cases, card.evaluation_data.cases) == (10, 0, 7)
    for form in (as_markdown, as_html, as_json):
        assert not any(name in form(card) for name in ("fit 0", "kept 1", "new 3"))


def test_subgroups_are_measured_apart_and_a_small_one_has_no_interval(fitted, result):
    of = {f"new {number}": "A" if number < 4 else "rare" for number in range(6)}
    card = segcal.card(fitted, result, subgroups=of)
    assert [(each.subgroup, each.cases) for each in card.performance[1:]] == [("A", 4), ("rare", 2)]
    rows = {(row["case"], row["stage"]): row["nll"] for row in result.rows}
    nll = card.performance[1].metrics[0]
    assert nll.after.value == pytest.approx(np.mean([rows[f"new {number}", "after"] for number in range(4)]))
    whole, rare = as_markdown(card).split("Performance: rare")
    assert "Means (too few for an interval)." in rare
    assert "[" not in rare.split("## ")[0]
    assert "too few" not in whole
    with pytest.raises(InputError, match=r"subgroups names none of the 7 cases .* The first of them is 'new 0': use"):
        segcal.card(fitted, result, subgroups={"old 1": "rare"})
    with pytest.raises(InputError, match=r"subgroups is given, but no case was measured that had no part in the fit\."):
        segcal.card(fitted, subgroups={"new 1": "rare"})


def test_cases_of_the_fit_are_left_out_and_then_nothing_is_claimed(fitted):
    flattering = segcal.evaluate(make_cases(0, 10, "fit "), fitted, metrics=["nll"])
    card = segcal.card(fitted, flattering)
    assert card.performance == ()
    assert any("nothing was measured" in line for line in card.not_valid_for)


def test_promises_limits_and_levels_are_those_of_the_calibrator(fitted):
    kept, free = segcal.card(fitted, not_valid_for=["children"]), segcal.card(segcal.fit("ms", make_cases(0, 10, "f")))
    assert [(one.promise, one.holds) for one in kept.promises] == [("offset", True), ("decision", True)]
    assert "masks stay as they are" in kept.intended_use
    assert "masks may change" in free.intended_use
    assert not free.promises[0].promised
    assert any("may change the class" in line for line in free.not_valid_for)
    assert kept.not_valid_for[-1] == "children"
    found = kept.monitoring
    assert (found.reference_cases, found.reference_draws, found.trust_levels) == (11, 11, (0.8, 0.9))
    assert free.monitoring is None


def test_the_markdown_has_the_metadata_of_a_model_card(fitted, result, tmp_path):
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    card = segcal.card(fitted, result, tmp_path / "card.md", dataset="street: scenes")
    metadata = yaml.safe_load((tmp_path / "card.md").read_text("utf-8").split("---\n")[1])
    (found,) = metadata["model-index"]
    assert found["results"][0]["task"]["type"] == "image-segmentation"
    assert found["results"][0]["dataset"]["name"] == "street: scenes"
    values = {one["type"]: one["value"] for one in found["results"][0]["metrics"]}
    assert values == pytest.approx({one.type: one.after.value for one in card.performance[0].metrics}, rel=1e-3)
    assert all(len(f"{value:.10g}") <= 7 for value in values.values())


def test_what_it_is_of_and_when_it_was_made_come_first(fitted, result):
    card = segcal.card(fitted, result, dataset="street scenes")
    first = next(blocks(card))
    facts = dict(first.rows)
    assert list(facts)[1:6] == ["model", "classes", "calibrator", "data", "date"]
    temperature = fitted.calibrator.temperature
    assert facts["calibrator"] == (
        f"Temperature scaling, temperature {temperature:.2f} (overconfident before) (ts), 1 parameter"
    )
    assert facts["data"] == "street scenes; 10 calibration, 0 tuning, 7 evaluation cases"
    assert datetime.date.fromisoformat(facts["date"])
    assert facts["version"] == f"segcal {segcal.__version__}"
    dice = next(
        one for one in next(block for block in blocks(card) if "Performance" in block.title).rows if "dice" in one[0]
    )
    assert dice[-1] == "0"
    assert all(len(number) <= 7 for number in re.findall(r"[\d.]+", " ".join(dice[1:])))


def test_every_form_has_every_block_and_escapes_what_names_hold(fitted, result):
    named = segcal.fit("ts", make_cases(0, 5, "a", class_names=("a|b", "c", "<d>")))
    for card in (segcal.card(named, not_valid_for=["<script>"]), segcal.card(fitted, result)):
        for block in blocks(card):
            assert f"## {block.title}" in as_markdown(card)
            assert f"<h2>{block.title}</h2>" in as_html(card)
        plain = json.loads(as_json(card))
        assert plain.pop("card") == "segcal"
        assert msgspec.convert(plain, segcal.Card) == card
    card = segcal.card(named, not_valid_for=["<script>"])
    assert "a\\|b" in as_markdown(card)
    assert as_markdown(card).startswith("---\n# segcal card\n")
    assert "&lt;d&gt;" in as_html(card)
    assert "&lt;script&gt;" in as_html(card)
    assert not re.search(r"(src|href)=|url\(|@import|<script|https?:", as_html(card))


def test_every_form_lists_the_evidence_per_class():
    labels = np.zeros((4, 5, 6), int)
    labels[1:, 0, :2], labels[3, 4] = 1, 2
    logits = np.eye(3)[labels].transpose(0, 3, 1, 2) + np.random.default_rng(0).normal(size=(4, 3, 5, 6))
    declared = {"class_names": ("rest", "organ", "lesion"), "groups": ["p1", "p1", "p2", "p3"]}
    card = segcal.card(segcal.fit("ts", segcal.ArrayCases(logits=list(logits), labels=list(labels), **declared)))
    expected = [("rest", 3, 108), ("organ", 3, 6), ("lesion", 1, 6)]
    for name, count, voxels in expected:
        assert f"| {name} | {count} of 3 | {voxels} |" in as_markdown(card)
        assert f"<tr><td>{name}<td>{count} of 3<td>{voxels}" in as_html(card)
    found = json.loads(as_json(card))["description"]
    assert [(one["name"], one["groups"], one["voxels"]) for one in found["classes"]] == expected
    assert found["groups"] == 3


def test_a_card_is_replaced_and_nothing_else(fitted, tmp_path):
    for form in ("md", "json", "html"):
        path = tmp_path / f"card.{form}"
        segcal.card(fitted, path=path)
        segcal.card(fitted, path=path)
        path.write_text("mine")
        with pytest.raises(InputError, match=r"exists and was not written by this command"):
            segcal.card(fitted, path=path)
    with pytest.raises(InputError, match=r"card.pdf, but a name that ends in .md, .json, .html is needed. Choose one."):
        segcal.card(fitted, path=tmp_path / "card.pdf")


@pytest.mark.parametrize("name", ["result.json", "rows.csv"])
def test_files_of_results_make_the_same_card(fitted, result, tmp_path, name):
    (result.to_json if name.endswith("json") else result.to_csv)(tmp_path / name)
    found, expected = segcal.card(fitted, tmp_path / name), segcal.card(fitted, result)
    for one, other in zip(found.performance[0].metrics, expected.performance[0].metrics, strict=True):
        assert one.after.value == pytest.approx(other.after.value, rel=1e-12)
    assert found.evaluation_data == expected.evaluation_data


def test_results_that_are_none_or_of_another_calibrator_are_refused(fitted, tmp_path):
    (tmp_path / "rows.csv").write_text("case,stage,nll\na,before,1\n")
    (tmp_path / "rows.json").write_text('{"rows": [1]}')
    for name in ("rows.csv", "rows.json"):
        with pytest.raises(InputError, match=rf"{name} has no rows of cases after calibration, but those are what a"):
            segcal.card(fitted, tmp_path / name)
    with pytest.raises(InputError, match=r"fitted is 3, but the result of segcal.fit or text or a path is needed"):
        segcal.card(3)
    other = segcal.evaluate(make_cases(1, 7, "new "), segcal.make_calibrator("vs", 3), metrics=["nll"])
    other.to_csv(tmp_path / "other.csv")
    other.to_json(tmp_path / "other.json")
    for results in (other, tmp_path / "other.csv", tmp_path / "other.json"):
        text = r"results were measured with another calibrator \(digest \w{16}\), but this card is of \w{16}\. Evaluate"
        with pytest.raises(InputError, match=text):
            segcal.card(fitted, results)


def test_numbers_without_a_digest_are_taken_with_a_note(fitted, result, tmp_path):
    assert segcal.card(fitted, result).notes == ()
    result.to_csv(tmp_path / "new.csv")
    lines = (tmp_path / "new.csv").read_text().splitlines()
    (tmp_path / "old.csv").write_text("\n".join(line.rsplit(",", 1)[0] for line in lines) + "\n")
    card = segcal.card(fitted, tmp_path / "old.csv")
    assert card.performance == segcal.card(fitted, tmp_path / "new.csv").performance
    note = "The numbers do not say which calibrator made them: an older segcal wrote them, or somebody else."
    assert f"## Notes\n\n- {note}\n" in as_markdown(card)
