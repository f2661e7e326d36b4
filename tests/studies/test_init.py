"""The registry: names are checked, what takes long is asked for, and what is finished is read back."""

import json
from dataclasses import replace

import pytest
from msgspec import structs, to_builtins

from segcal.benchmark.protocol import parse_protocol
from segcal.errors import ArtifactError, InputError
from segcal.studies import STUDIES, USUAL, choose_studies, read_outcomes, run_studies

TASK = {"name": "x", "embedded": "roads"}


def refusing(text):
    return STUDIES["binning"]._replace(run=lambda setting: pytest.fail(text))


def test_a_protocol_has_the_usual_studies_unless_it_names_others():
    def chosen(**keys):
        return choose_studies(parse_protocol({"tasks": [TASK], **keys}).studies)

    assert chosen() == USUAL
    assert chosen(studies=[]) == ()
    assert chosen(studies="all") == tuple(STUDIES)
    assert chosen(studies=["padding", "flips", "padding"]) == ("padding", "flips")
    for wrong in (["weather"], [3], ["flips", "all"]):
        with pytest.raises(InputError, match=r"no study is named .*\. Choose one of: offsets, flips"):
            chosen(studies=wrong)


def test_what_is_read_from_a_folder_is_what_was_written(setting):
    written, _ = run_studies(setting, list(STUDIES))
    found = read_outcomes(setting.results.folder)
    assert {name: to_builtins(data) for name, data in found.items()}.keys() == written.keys()
    path = setting.results.folder / "studies" / "binning.json"
    before = path.read_bytes()
    try:
        path.write_text("{}")
        with pytest.raises(ArtifactError, match=r"binning\.json is not readable .* Delete it and run the"):
            read_outcomes(setting.results.folder)
    finally:
        path.write_bytes(before)


def test_all_studies_run_and_write_their_files(setting):
    studies, left_out = run_studies(setting, list(STUDIES))
    assert list(studies) == list(STUDIES)
    assert left_out == {}
    written = {path.stem for path in (setting.results.folder / "studies").glob("*.json")}
    assert written == set(STUDIES)
    stems = {path.stem for path in (setting.results.folder / "tables").glob("*.md")}
    assert {"table5_offsets", "figure4_flips", "figure5_size_toy", "figure6_binning", "padding"} <= stems


def test_every_study_says_what_it_needs_and_the_usual_ones_fit_nothing():
    assert all(study.shows and study.costs for study in STUDIES.values())
    assert not {"calibration_size", "padding"} & set(USUAL)


def test_a_finished_study_is_read_back_and_one_with_other_options_is_done_anew(setting, with_options, monkeypatch):
    first, _ = run_studies(setting, ["binning"])
    path = setting.results.folder / "studies" / "binning.json"
    before = path.read_bytes()
    monkeypatch.setitem(STUDIES, "binning", refusing("it is finished"))
    again, left_out = run_studies(setting, ["binning"])
    assert again["binning"].data == first["binning"].data
    assert (left_out, path.read_bytes()) == ({}, before)
    with pytest.raises(pytest.fail.Exception, match="it is finished"):
        run_studies(with_options(cases=1), ["binning"])
    (setting.results.folder / "tables" / "figure6_binning.md").unlink()
    with pytest.raises(pytest.fail.Exception, match="it is finished"):
        run_studies(setting, ["binning"])


def test_a_unit_with_other_numbers_makes_its_studies_anew_though_its_digest_is_the_same(setting, monkeypatch):
    run_studies(setting, ["binning"])
    monkeypatch.setitem(STUDIES, "binning", refusing("it is done anew"))
    path = setting.results.folder / setting.results.units[0].unit.path
    before = path.read_text("utf-8")
    header, row, rest = before.split("\n", 2)
    changed = json.loads(row)
    changed["metrics"]["ece"] += 0.25
    try:
        path.write_text("\n".join([header, json.dumps(changed), rest]), "utf-8")
        with pytest.raises(pytest.fail.Exception, match="it is done anew"):
            run_studies(setting, ["binning"])
    finally:
        path.write_text(before, "utf-8")
    run_studies(setting, ["binning"])


def test_the_studies_of_the_protocol_are_run_if_none_are_named(setting):
    protocol = structs.replace(setting.protocol, studies=("reliability",))
    assert list(run_studies(replace(setting, protocol=protocol))[0]) == ["reliability"]


def test_a_study_that_does_not_exist_is_refused(setting):
    with pytest.raises(InputError, match=r"no study is named 'weather'\. Choose one of: offsets, flips"):
        run_studies(setting, ["weather"])
