"""Codes of segments: files of dcmqi are taken, wrong ones are one sentence."""

import json
from copy import deepcopy

import msgspec
import pytest

import segcal
from segcal.integrations.dicom import TISSUE, Segment, read_segments

NAMES = ("liver", "tumour")


def code(value, meaning):
    return {"CodeValue": value, "CodingSchemeDesignator": "SCT", "CodeMeaning": meaning}


def whole():
    segment = {
        "SegmentedPropertyCategoryCodeSequence": code("123037004", "Anatomical Structure"),
        "SegmentedPropertyTypeCodeSequence": code("10200004", "Liver"),
        "recommendedDisplayRGBValue": [1, 2, 3],
    }
    return {"ContentCreatorName": "Doe", "segmentAttributes": [[{"labelID": 2} | segment, {"labelID": 1} | segment]]}


@pytest.fixture
def read(tmp_path):
    def read(content, **more):
        path = tmp_path / "segments.json"
        path.write_text(content if isinstance(content, str) else json.dumps(content), "utf-8")
        return read_segments(path, NAMES, **more)

    return read


def test_segments_come_in_the_order_of_classes_and_what_is_not_known_stays_unread(read):
    content = whole()
    content["segmentAttributes"] = [[each] for each in content["segmentAttributes"][0]]
    content["segmentAttributes"][1][0]["SegmentLabel"] = "The liver"
    found = read(content)
    assert [(one.number, one.label) for one in found.segments] == [(1, "The liver"), (2, "tumour")]
    assert found.segments[0].kind.meaning == "Liver"
    assert found.description == "segcal"


def test_a_description_is_the_callers_or_the_files(read):
    assert read(whole() | {"SeriesDescription": "Livers"}).description == "Livers"
    assert read(whole() | {"SeriesDescription": "Livers"}, description="Mine").description == "Mine"
    for wrong in ("", "x" * 65, "a\\b", "a\nb"):
        with pytest.raises(
            segcal.InputError, match=r"^description is .*, but 1 to 64 characters are needed. Shorten it.$"
        ):
            read(whole(), description=wrong)


def test_without_a_file_structures_are_tissue_under_their_names():
    found = read_segments(None, ["x" * 70])
    assert (found.segments[0].kind, found.segments[0].category, found.segments[0].site) == (TISSUE, TISSUE, None)
    assert found.segments[0].label == "x" * 64


def test_where_a_structure_is():
    content = whole()
    region = {
        "AnatomicRegionSequence": code("10200004", "Liver"),
        "AnatomicRegionModifierSequence": code("7771000", "Left"),
    }
    content["segmentAttributes"][0][0] |= region
    two, one = msgspec.convert(content["segmentAttributes"][0], list[Segment])
    assert [each.meaning for each in two.site] == ["Liver", "Left"]
    assert (one.site[0].value, one.site[1]) == ("10200004", None)


def changed(*path, value):
    content = deepcopy(whole())
    place = content["segmentAttributes"][0][0]
    for name in path[:-1]:
        place = place[name]
    if value is None:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return content


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("{", r"segments.json has no codes of segments \(.*\), but a file as dcmqi takes it is needed. Correct it."),
        ([], r"Expected `object`, got `array`\), but"),
        ({"segmentAttributes": []}, r"has segments for labelID none, but the structures are 1 \(liver\), 2 \(tumour\)"),
        (changed("labelID", value=3), r"has segments for labelID 1, 3, but the structures are"),
        (changed("labelID", value=1), r"has segments for labelID 1, 1, but the structures are"),
        (changed("SegmentedPropertyTypeCodeSequence", value=None), r"missing required field `SegmentedPropertyType"),
        (changed("SegmentedPropertyTypeCodeSequence", "CodeValue", value="1" * 17), r"length <= 16"),
        (changed("SegmentedPropertyTypeCodeSequence", "CodeMeaning", value="1" * 65), r"length <= 64"),
        (changed("SegmentedPropertyTypeCodeSequence", "CodeValue", value=7), r"Expected `str`, got `int`"),
        (changed("SegmentLabel", value="Liver"), r"calls labelID 2 'Liver', but that is the name of class 1."),
    ],
)  # fmt: skip
def test_a_wrong_file_is_one_sentence(read, content, text):
    with pytest.raises(segcal.InputError, match=text) as told:
        read(content)
    assert "\n" not in str(told.value)


def test_a_file_that_is_not_there_is_one_sentence(tmp_path):
    with pytest.raises(segcal.InputError, match=r"no.json is missing, but it is needed"):
        read_segments(tmp_path / "no.json", NAMES)
