import hashlib
import json

import numpy as np
import pytest

import segcal
from segcal.errors import InputError


def make_cases(seed, count, prefix):
    rng = np.random.default_rng(seed)
    logits = 3 * rng.normal(size=(count, 3, 11, 13))
    labels = (logits / 2 + rng.gumbel(size=logits.shape)).argmax(1)
    ids = [f"{prefix}{number}" for number in range(count)]
    return segcal.ArrayCases(logits=list(logits), labels=list(labels), ids=ids)


@pytest.fixture(scope="module")
def fitted():
    return segcal.learn_trust(segcal.fit("ts", make_cases(0, 10, "fit ")), make_cases(2, 11, "kept "))


@pytest.fixture(scope="module")
def result(fitted):
    return segcal.evaluate(make_cases(1, 7, "new "), fitted, metrics=["nll", "ece", "ace", "dice"])


def test_its_numbers_are_those_of_the_evaluation(fitted, result):
    card = segcal.card(fitted, result)
    (group,) = card.performance
    assert (group.subgroup, group.cases) == ("all held-out cases", 7)
    assert [one.type for one in group.metrics] == ["nll", "dice", "ece"]  # ace pools voxels over cases
    for one in group.metrics:
        assert one.before == result.before[one.type]
        assert one.after == result.after[one.type]
        assert one.change == result.change[one.type]
    assert card.level == result.level


def test_cases_are_hashes_and_their_names_stand_nowhere(fitted, result, tmp_path):
    card = segcal.card(fitted, result, tmp_path / "card.json")
    expected = {hashlib.sha256(f"{fitted.fingerprint}/fit {n}".encode()).hexdigest()[:16] for n in range(10)}
    assert set(card.calibration_data.case_sha256) == expected
    assert (card.calibration_data.cases, card.tuning_data.cases, card.evaluation_data.cases) == (10, 0, 7)
    for form in (".md", ".html", ".json"):
        segcal.card(fitted, result, tmp_path / f"card{form}")
        text = (tmp_path / f"card{form}").read_text("utf-8")
        assert not any(name in text for name in ("fit 0", "kept 1", "new 3"))


def test_subgroups_are_measured_apart(fitted, result):
    of = {f"new {number}": "A" if number < 3 else "B" for number in range(6)}
    card = segcal.card(fitted, result, subgroups=of)
    assert [(each.subgroup, each.cases) for each in card.performance[1:]] == [("A", 3), ("B", 3)]
    rows = {(row["case"], row["stage"]): row["nll"] for row in result.rows}
    nll = card.performance[1].metrics[0]
    assert nll.after.value == pytest.approx(np.mean([rows[f"new {number}", "after"] for number in range(3)]))


def test_cases_of_the_fit_are_left_out_and_then_nothing_is_claimed(fitted):
    flattering = segcal.evaluate(make_cases(0, 10, "fit "), fitted, metrics=["nll"])
    card = segcal.card(fitted, flattering)
    assert card.performance == ()
    assert any("nothing was measured" in line for line in card.not_valid_for)


def test_promises_and_limits_are_those_of_the_calibrator(fitted):
    kept, free = segcal.card(fitted), segcal.card(segcal.fit("ms", make_cases(0, 10, "fit ")))
    assert [(one.promise, one.holds) for one in kept.promises] == [("offset", True), ("decision", True)]
    assert "masks stay as they are" in kept.intended_use
    assert "masks may change" in free.intended_use
    assert not free.promises[0].promised
    assert any("may change the class" in line for line in free.not_valid_for)
    assert segcal.card(fitted, not_valid_for=["children"]).not_valid_for[-1] == "children"


def test_levels_of_trust_are_those_that_the_reference_supports(fitted):
    found = segcal.card(fitted).monitoring
    assert (found.reference_cases, found.reference_draws, found.trust_levels) == (11, 11, (0.8, 0.9))
    assert segcal.card(segcal.fit("ts", make_cases(0, 4, "fit "))).monitoring is None


@pytest.mark.parametrize("name", ["result.json", "rows.csv"])
def test_files_of_results_make_the_same_card(fitted, result, tmp_path, name):
    (result.to_json if name.endswith("json") else result.to_csv)(tmp_path / name)
    found, expected = segcal.card(fitted, tmp_path / name), segcal.card(fitted, result)
    for one, other in zip(found.performance[0].metrics, expected.performance[0].metrics, strict=True):
        assert one.after.value == pytest.approx(other.after.value, rel=1e-12)
    assert found.evaluation_data == expected.evaluation_data


def test_the_markdown_has_the_metadata_of_a_model_card(fitted, result, tmp_path):
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    card = segcal.card(fitted, result, tmp_path / "card.md", dataset="street: scenes")
    text = (tmp_path / "card.md").read_text("utf-8")
    metadata = yaml.safe_load(text.split("---\n")[1])
    (found,) = metadata["model-index"]
    assert found["results"][0]["task"]["type"] == "image-segmentation"
    assert found["results"][0]["dataset"]["name"] == "street: scenes"
    values = {one["type"]: one["value"] for one in found["results"][0]["metrics"]}
    assert values == {one.type: one.after.value for one in card.performance[0].metrics}
    for title in ("Description", "Intended use", "Not valid for", "Data", "Promises", "Trust and monitoring"):
        assert f"## {title}\n" in text


def test_json_is_the_card_and_html_is_one_page(fitted, result, tmp_path):
    card = segcal.card(fitted, result, tmp_path / "card.json")
    plain = json.loads((tmp_path / "card.json").read_text("utf-8"))
    assert plain["description"]["calibrator"] == "ts"
    assert plain["performance"][0]["metrics"][0]["after"]["value"] == card.performance[0].metrics[0].after.value
    segcal.card(fitted, result, tmp_path / "card.html", dataset="<b>", not_valid_for=["<script>"])
    text = (tmp_path / "card.html").read_text("utf-8")
    assert "&lt;script&gt;" in text
    assert "http" not in text


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


def test_results_that_are_none_are_refused(fitted, tmp_path):
    (tmp_path / "rows.csv").write_text("case,stage,nll\na,before,1\n")
    with pytest.raises(InputError, match=r"rows.csv has no rows of cases after calibration, but those are what a card"):
        segcal.card(fitted, tmp_path / "rows.csv")
    (tmp_path / "rows.json").write_text('{"rows": [1]}')
    with pytest.raises(InputError, match=r"rows.json has no rows of cases after calibration"):
        segcal.card(fitted, tmp_path / "rows.json")
    with pytest.raises(InputError, match=r"fitted is 3, but the result of segcal.fit or text or a path is needed"):
        segcal.card(3)


def test_numbers_of_another_calibrator_are_refused(fitted, tmp_path):
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
    card = segcal.card(fitted, tmp_path / "old.csv", tmp_path / "card.md")
    assert card.performance == segcal.card(fitted, tmp_path / "new.csv").performance
    note = "The numbers do not say which calibrator made them: an older segcal wrote them, or somebody else."
    assert f"## Notes\n\n- {note}\n" in (tmp_path / "card.md").read_text("utf-8")


def test_a_subgroup_of_two_cases_has_no_interval(fitted, result, tmp_path):
    segcal.card(fitted, result, tmp_path / "card.md", subgroups={"new 1": "rare", "new 2": "rare"})
    text = (tmp_path / "card.md").read_text("utf-8")
    whole, rare = text.split("Performance: rare")
    assert "Means (too few for an interval)." in rare
    assert "[" not in rare.split("## ")[0]
    assert "too few" not in whole


def test_subgroups_without_a_match_are_refused(fitted, result):
    with pytest.raises(InputError, match=r"subgroups names none of the 7 cases .* The first of them is 'new 0': use"):
        segcal.card(fitted, result, subgroups={"old 1": "rare"})
    with pytest.raises(InputError, match=r"subgroups is given, but no case was measured that had no part in the fit\."):
        segcal.card(fitted, subgroups={"new 1": "rare"})
