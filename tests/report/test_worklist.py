"""The worklist: every name escaped, nothing from elsewhere, what to look at first on top."""

import re
from dataclasses import replace

from segcal.report import worklist
from segcal.report.worklist import WORKLIST, write_worklist
from segcal.trust.object_rows import ObjectCaseRow, ObjectRow, Objects

EVIL = "<script>alert('x')</script>&\""


def result(count=2):
    place = ([1.0, 2.0], [0, 0, 2, 3], None, None, None, None)
    rows = [
        ObjectRow(f"{EVIL}{k}", EVIL, k, 0.5 + k / 10, True, 0.5, 7, None, None, "voxels", 7, 0.9, 0.9, None, *place)
        for k in reversed(range(count))
    ]
    cases = [ObjectCaseRow("a", EVIL, count, 1.0, 1, 0.25, None, None, None)]
    return Objects(rows, cases, [], 0.9, 0.1, "iou", 0.1, "held out", EVIL)


def test_a_page_is_one_file_with_escaped_names(tmp_path):
    text = write_worklist(tmp_path / "w.html", result()).read_text("utf-8")
    assert WORKLIST.match(text.encode())
    assert "<script" not in text
    assert text.count("&lt;script&gt;") == 2 * 2 + 1
    assert not re.search(r"(src|href)=|url\(|@import", text)
    assert "script-src &#x27;none&#x27;" in text
    assert text.index("&quot;0</bdi>") < text.index("&quot;1</bdi>")


def test_a_long_list_is_cut_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(worklist, "MOST_ROWS", 1)
    text = write_worklist(tmp_path / "w.html", result()).read_text("utf-8")
    assert "The first 1 of 2; objects.csv has all." in text
    assert text.count("<tr>") == 2


def test_a_page_without_objects_is_a_page(tmp_path):
    text = write_worklist(tmp_path / "w.html", replace(result(), rows=[])).read_text("utf-8")
    assert "0 objects, 0 listed" in text
