"""The page of conic scaling: made from a folder of results alone."""

import re
import sys
from functools import partial

from msgspec.structs import replace

from paper import conic_page
from segcal.benchmark.protocol import parse_protocol
from segcal.demo.embedded import open_embedded
from segcal.studies.run import run


def test_the_page_has_paired_differences_all_rows_and_what_was_learned(tmp_path, monkeypatch):
    names = ("ts", "cms_ap", "conic", "conic_class")
    document = {
        "tasks": [{"name": "roads", "embedded": "roads", "cases": 7, "members": 2, "split": {"cal": 3, "val": 1}}],
        "pipelines": [{"pooling": "mean_logits", "calibrator": name} for name in names],
        "fit": {"lam": 1e-3, "mu": 1e-3, "voxels": 500},
        "bootstrap": {"replicates": 20},
        "studies": [],
        "repeats": 1,
    }
    opener = partial(open_embedded, cache=tmp_path / "cache")
    run(replace(parse_protocol(document), embedded=opener), tmp_path / "results")
    page = tmp_path / "docs" / "page.md"
    page.parent.mkdir()
    monkeypatch.setattr(sys, "argv", ["conic_page", str(tmp_path / "results"), "-o", str(page)])
    conic_page.main()
    text = page.read_text("utf-8")
    for second, first in (("conic", "ts"), ("conic", "cms_ap"), ("conic_class", "conic")):
        row = next(
            line for line in text.splitlines() if f"`{second}(mean_logits)` against `{first}(mean_logits)`" in line
        )
        assert len(re.findall(r"[+-]\d\.\d{4} \[[+-]\d\.\d{4}, [+-]\d\.\d{4}\]", row)) == 4
    assert "KKT residual" in text
    assert (page.parent / "images" / "conic_roads.svg").read_text("utf-8").startswith("<?xml")
