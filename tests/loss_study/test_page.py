import re
from pathlib import Path

import numpy as np
import pytest

from paper.loss_study import page
from paper.loss_study.page import facts_text, sections, write_page
from paper.loss_study.plan import MAIN, Unit, plan_units
from paper.loss_study.results import Results
from paper.loss_study.rows import pack, read_rows, write_arrays, write_row


@pytest.fixture
def archive(tmp_path, rows):
    """An archive of a made-up study with pictures of one case of roads, a quarter of them ignored."""
    folder = tmp_path / "rows"
    folder.mkdir()
    for row in rows:
        write_row(folder, Unit(**row["unit"]).name, row)
    labels = np.zeros((6, 8), np.int8)
    labels[:3, :4] = -1
    write_arrays(folder, "roads-shown", {"image": np.zeros((3, 6, 8), np.uint8), "labels": labels})
    for variant in MAIN:
        arrays = {"prediction": np.zeros((6, 8), np.uint8), "confidence": np.full((6, 8), 200, np.uint8)}
        write_arrays(folder, Unit("roads", variant, 0).name, arrays)
    pack(folder, tmp_path / "losses.zip")
    return tmp_path / "losses.zip"


def test_a_page_links_every_figure_that_is_there(tmp_path, archive):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    page = write_page([archive], tmp_path / "out")
    text = page.read_text(encoding="utf-8")
    linked = set(re.findall(r"\((images/\w+\.png)\)", text))
    there = {path.relative_to(page.parent).as_posix() for path in page.parent.glob("images/*")}
    assert linked == there
    assert {"images/case_roads.png", "images/radar.png", "images/shares.png"} <= linked
    assert "images/case_tumour.png" not in linked  # no case of it was kept
    assert not list(page.parent.rglob("*.part*"))
    assert "mean nothing" not in text


def test_a_small_study_says_that_its_numbers_mean_nothing(tmp_path, archive):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    assert "its numbers mean nothing" in write_page([archive], tmp_path / "out", small=True).read_text()


def test_a_page_of_a_part_says_that_more_is_to_come(tmp_path, archive):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    assert "5 more are to come" in write_page([archive], tmp_path / "out", missing=5).read_text()


def test_parts_without_networks_are_left_out(made_up, rows):
    alone = Results([made_up(unit) for unit in plan_units(2, main_only=True)])
    few, all_of_them = (re.findall(r"^### (.*)$", sections(own, [], "x"), re.M) for own in (alone, Results(rows)))
    beyond = [title for title in all_of_them if title not in few]
    assert [title.split(" (")[0] for title in beyond] == [
        "Prior, penalty, logits or softmax",
        "NACL against SVLS with the same Gaussian",
        "Hyper-parameters",
        "Backbones",
        "Less training data",
    ]
    assert "Ranks (Fig. 2)" in few


def test_ranks_need_every_loss(made_up):
    results = Results([made_up(Unit("roads", variant, 0)) for variant in MAIN[:3]])
    assert "Ranks" not in sections(results, [], "x")


def test_the_page_says_how_many_were_trained(made_up, rows):
    assert facts_text(Results(rows)).startswith(f"{len(rows)} networks were trained, 2 of each kind")
    uneven = [made_up(Unit("roads", "ce", seed)) for seed in (0, 1)] + [made_up(Unit("roads", "nacl", 0))]
    assert facts_text(Results(uneven)).startswith("3 networks were trained, 1 to 2 of each kind")


ROOT = Path(__file__).parents[2]
ARCHIVE = ROOT / "benchmarks" / "results" / "losses.zip"


@pytest.mark.skipif(not ARCHIVE.exists(), reason="the results of the study are not part of this copy")
def test_the_generated_part_of_the_docs_says_what_was_measured():
    document = (ROOT / "docs" / page.PAGE).read_text(encoding="utf-8")
    drawn = [path.stem for path in (ROOT / "docs" / page.DOCS_IMAGES).iterdir()]
    text = page.sections(Results(read_rows([ARCHIVE])), drawn, page.DOCS_IMAGES)
    assert page.replaced(document, text) == document


@pytest.mark.skipif(not ARCHIVE.exists(), reason="the results of the study are not part of this copy")
def test_all_networks_of_a_task_were_tested_on_the_same_cases():
    tested = {(row["unit"]["task"], tuple(row["cases"])) for row in read_rows([ARCHIVE])}
    assert sorted(task for task, _ in tested) == ["roads", "streets", "tumour"]


def test_only_what_stands_between_marks_is_replaced():
    document = f"a\n{page.BEGIN}\nold\n{page.END}\nb"
    assert page.replaced(document, "new\n") == f"a\n{page.BEGIN}\n\nnew\n\n{page.END}\nb"
