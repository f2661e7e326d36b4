"""Reading protocols and their pipelines: what is known, what is refused, and what the hash sees."""

from dataclasses import fields

import pytest
from msgspec import convert, to_builtins
from msgspec.structs import replace

from segcal.benchmark.protocol import (
    LISTS,
    OTHER_ROWS,
    Pipeline,
    StudyOptions,
    in_row_groups,
    load_protocol,
    paper_pipelines,
    parse_protocol,
)
from segcal.benchmark.tasks import Division, EmbeddedTask, FolderTask
from segcal.calibrators import CALIBRATORS
from segcal.cases import ReadOptions
from segcal.errors import InputError
from segcal.fitting import FitConfig

EMBEDDED = {"name": "roads", "embedded": "roads", "cases": 12}
FOLDERS = {"name": "mine", "members": ["a", "b"], "labels": "truth", "kind": "logits", "ignore": 255}


def protocol(**changes):
    return parse_protocol({"tasks": [EMBEDDED]} | changes)


def test_a_file_is_read_whole(tmp_path):
    path = tmp_path / "protocol.toml"
    path.write_text(
        """
repeats = 2
seed = 7
metrics = ["nll", "ece"]
workers = 2
pipelines = [
  {pooling = "mean_probs", calibrator = "ts"},
  {pooling = "single", calibrator = "identity"},
]

[split]
cal = 4
val = 2

[fit]
method = "paper"
voxels = 500
lam = 0

[bootstrap]
replicates = 100

[[tasks]]
name = "mine"
members = ["net_0", "net_1"]
labels = "truth"
kind = "logits"
groups = '(p\\d+)_'
background = false
split = {cal = 3, val = 1, test = 5}
test_on = ["roads"]

[[tasks]]
name = "roads"
embedded = "roads"
cases = 12
test_only = true
""".replace("\\\\", "\\"),
        encoding="utf-8",
    )
    found = load_protocol(path)
    assert found.root == tmp_path
    assert (found.repeats, found.seed, found.metrics, found.workers) == (2, 7, ("nll", "ece"), 2)
    assert [each.title for each in found.pipelines] == ["ts(mean_probs)", "identity(single)"]
    assert found.fit == FitConfig(method="paper", voxels=500, lam=0, outliers=False)
    mine, roads = found.tasks
    assert isinstance(mine, FolderTask)
    assert isinstance(roads, EmbeddedTask)
    assert mine.members == ("net_0", "net_1")
    assert mine.options == ReadOptions(kind="logits", groups=r"(p\d+)_")
    assert mine.background is False
    assert found.division(mine) == Division(3, 1, 5)
    assert found.division(roads) == Division(4, 2)
    assert mine.test_on == ("roads",)
    assert roads.test_only


def test_the_default_list_is_table_4():
    found = protocol()
    both = {
        f"{name}({how})"
        for name in ("cdc", "cms_ap", "cms_op", "ts", "ets", "dc", "conic", "conic_class")
        for how in ("mean_probs", "mean_logits")
    }
    logits = {f"{name}(mean_logits)" for name in ("ms", "ms_c", "lts", "lts_ti", "vs", "vs_ti")}
    plain = {"identity(single)", "identity(mean_probs)", "identity(mean_logits)"}
    assert {each.title for each in found.pipelines} == both | logits | plain
    assert found.paper
    assert found.notes == ()


def test_the_hash_sees_numbers_and_not_places_or_processes():
    one = parse_protocol({"tasks": [FOLDERS]}, "here")
    assert one.hash() == parse_protocol({"tasks": [FOLDERS], "workers": 3}, "there").hash()
    assert one.hash() != parse_protocol({"tasks": [FOLDERS], "seed": 1}, "here").hash()
    assert one.hash() != parse_protocol({"tasks": [{**FOLDERS, "ignore": 3}]}, "here").hash()
    assert one.hash() != replace(one, fit=FitConfig(lam=0.5)).hash()
    assert one.hash() == one.hash()


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"repeat": 3}, r"the key repeat, which is unknown. Known keys: tasks, split, repeats"),
        ({"fit": {"patiance": 3}}, r"the key fit.patiance, which is unknown. Known keys: lam, mu, nu, folds, voxels"),
        ({"tasks": [{**EMBEDDED, "labels": "x"}]}, r"the key tasks\[0\].labels, which is unknown. Known keys: name"),
        ({"tasks": [{**FOLDERS, "cases": 3}]}, r"the key tasks\[0\].cases, which is unknown"),
        ({"pipelines": [{"pool": "x"}]}, r"the key pipelines\[0\].pool, which is unknown"),
        ({"repeats": "3"}, r"repeats = '3', but a whole number is needed"),
        ({"repeats": 0}, r"repeats = 0, but at least 1 is needed"),
        ({"repeats": 10**12}, r"repeats = 1000000000000, but at most 1000 is possible. Lower it"),
        ({"bootstrap": {"level": float("nan")}}, r"bootstrap.level = nan, but a share between 0 and 1 is needed"),
        ({"fit": {"trials": 10**15}}, r"fit.trials = 1000000000000000, but at most 100000 is possible"),
        ({"studies": "flips"}, r"studies = 'flips', but 'all' or a list of names is needed"),
        ({"study_options": {"cases": 0}}, r"study_options\.cases = 0, but at least 1 is needed"),
        *(
            ({"study_options": {"sizes": wrong}}, r"sizes = .*, but whole numbers of at least 1 are needed")
            for wrong in ([], [0], ["2"], 3, [True])
        ),
        ({"study_options": {"model_sizes": {"roads": "x"}}}, r"model_sizes.roads = 'x', but a whole number is needed"),
        (
            {"tasks": [{**EMBEDDED, "cases": 10**12}]},
            r"cases = 1000000000000, but at most 1e\+06 is possible",
        ),
        *(
            ({"pipelines": [{"pooling": "single", "calibrator": name, "options": options}]}, match)
            for name, options, match in [
                ("isotonic", {"knots": 10**12}, r"isotonic for 2 classes needs 14901.2 GiB, but at most"),
                ("pts", {"hidden": [10**9, 10**9]}, r"pts for 2 classes needs more memory than any machine has"),
                ("pts", {"hidden": 5}, r"pts has the options \{'hidden': 5\}, but it cannot be made with them"),
            ]
        ),
        ({"split": 3}, r"split = 3, but a table is needed"),
        ({"fit": {"lam": "x"}}, r"fit.lam = 'x', but a number is needed"),
        ({"fit": {"method": "adam"}}, r"method is 'adam', but 'exact' or 'paper' is needed"),
        ({"metrics": ["nnl"]}, r"no metric is named 'nnl'"),
        ({"metrics": "nll"}, r"metrics = 'nll', but a list of texts is needed"),
        *(({"seed": wrong}, r"seed = .*, but a whole number is needed") for wrong in (1.5, True, None)),
        *(
            ({"tasks": [{**FOLDERS, key: value}]}, rf"tasks\[0\].{key} = .*, but a text of one line is needed")
            for text in ("a\0b", "\u2028", "a\n", "caf\udce9")
            for key, value in (("labels", text), ("test_on", ["a", text]))
        ),
        ({"tasks": []}, r"has no tasks, but at least one is needed"),
        ({"tasks": [{"embedded": "roads"}]}, r"no tasks\[0\].name, but it is needed"),
        ({"tasks": [{"name": "x", "members": ["a"]}]}, r"no tasks\[0\].labels, but it is needed"),
        ({"tasks": [EMBEDDED, EMBEDDED]}, r"two tasks named 'roads', but names must differ"),
        ({"tasks": [{**EMBEDDED, "name": "a/b"}]}, r"name = 'a/b', but letters, digits"),
        ({"tasks": [{**EMBEDDED, "test_on": ["x"]}]}, r"test_on = 'x', but another task is needed"),
        ({"tasks": [{**EMBEDDED, "test_only": True}]}, r"test_only tasks alone, but one must be fitted on"),
        ({"pipelines": "few"}, r"pipelines = 'few', but one of 'paper', 'more', 'all', or a list of tables, is needed"),
        ({"pipelines": [{"pooling": "single"}]}, r"no pipelines\[0\].calibrator, but it is needed"),
        ({"pipelines": ["ts(mean_probs)"]}, r"pipelines\[0\] = 'ts\(mean_probs\)', but a table is needed"),
        ({"pipelines": [{"pooling": "mean", "calibrator": "ts"}]}, r"no pooling is named 'mean'"),
        ({"pipelines": [{"pooling": "single", "calibrator": "cms"}]}, r"no calibrator is named 'cms'"),
        (
            {"pipelines": [{"pooling": "single", "calibrator": "none"}]},
            r"calibrator is 'none', but a name is needed. Write identity for no calibration\.",
        ),
        (
            {"pipelines": [{"pooling": "mean_probs", "calibrator": "ms"}]},
            r"pipeline ms\(mean_probs\) depends .* throws it away\. Use mean_logits, or remove the pipeline\.",
        ),
        (
            {"pipelines": [{"pooling": "single", "calibrator": "ts", "options": {"x": 1}}]},
            r"ts has no option 'x'",
        ),
    ],
)
def test_what_is_wrong_is_named(changes, match):
    with pytest.raises(InputError, match=match):
        protocol(**changes)


def test_a_missing_or_broken_file_is_named(tmp_path):
    with pytest.raises(InputError, match="is missing, but a protocol is needed"):
        load_protocol(tmp_path / "no.toml")
    for text in ("a = " + "[" * 100_000, "a = " + "9" * 5000, "a ="):
        (tmp_path / "bad.toml").write_text(text, encoding="utf-8")
        with pytest.raises(InputError, match=r"bad\.toml is not readable as TOML \(.*\)\. Correct it there"):
            load_protocol(tmp_path / "bad.toml")


def test_studies_and_options_are_read_and_do_not_change_the_hash():
    plain, other = protocol(), protocol(studies=["flips"], study_options={"cases": 2, "sizes": [2, 5]})
    assert (plain.studies, protocol(studies="all").studies, other.studies) == (None, ("all",), ("flips",))
    assert other.study_options == StudyOptions(cases=2, sizes=(2, 5))
    assert plain.hash() == other.hash()
    entry = {"pooling": "single", "calibrator": "pts", "options": {"hidden": [4, 4]}}  # of a pipeline
    assert list(to_builtins(protocol(pipelines=[entry, entry]).pipelines)) == [entry]
    assert type(protocol(fit={"lam": 1}).fit.lam) is int  # a whole number stays one


def test_pairs_to_compare_are_titles_and_do_not_change_the_hash():
    pipelines = [{"pooling": how, "calibrator": name} for how, name in (("single", "ts"), ("single", "ets"))]
    asked = protocol(pipelines=pipelines, compare=[["ts", "ets(single)"]])
    assert asked.compare == (("ts(single)", "ets(single)"),)
    assert asked.hash() == protocol(pipelines=pipelines).hash()
    with pytest.raises(
        InputError, match=r"compare names 'vs', but no pipeline is called so\. Choose from: ts\(single\)"
    ):
        protocol(pipelines=pipelines, compare=[["ts", "vs"]])
    with pytest.raises(InputError, match=r"compare names 'ts', but 2 pipelines are called so\."):
        protocol(pipelines=[*pipelines, {"pooling": "mean_probs", "calibrator": "ts"}], compare=[["ets", "ts"]])
    with pytest.raises(InputError, match="compare"):
        protocol(pipelines=pipelines, compare=[["ts"]])


def test_every_declaration_about_files_can_be_made_but_the_pooling():
    names = [field.name for field in fields(ReadOptions)]
    given = {"ignore": 1, "class_axis": 1, "class_names": ["a", "b"], "regions": {"r": [1, 2]}}
    given |= {"regions_class_order": [1], "ignore_geometry": True, "label_axes": "zyx"}
    given |= {"raters": "bits", "num_raters": 3, "rater_weights": [1, 2, 1]}
    wanted = {name: given.get(name, "x") for name in names if name != "pooling"}
    (task,) = protocol(tasks=[{"name": "mine", "members": ["a"], "labels": "b", **wanted}]).tasks
    fixed = {"class_names": ("a", "b"), "regions": {"r": (1, 2)}, "regions_class_order": (1,)}
    fixed["rater_weights"] = (1, 2, 1)
    assert task.options == ReadOptions(**wanted | fixed)
    assert (task.name, task.region) == ("mine-r", "r")
    with pytest.raises(InputError, match=r"the key tasks\[0\].pooling, which is unknown"):
        protocol(tasks=[FOLDERS | {"pooling": "single"}])


def test_titles_are_readable_and_as_in_the_paper_in_latex_and_promises_are_the_calibrator_s():
    assert Pipeline("mean_logits", "cms_ap").title == "cms_ap(mean_logits)"
    assert Pipeline("mean_logits", "cms_ap").latex == r"CMS$_\mathrm{ap}$($\bar{z}$)"
    assert Pipeline("single", "identity").latex == "$p_0$"
    assert Pipeline("mean_logits", "conic_class").latex == r"Conic$_\mathrm{class}$($\bar{z}$)"
    pipeline = Pipeline("mean_logits", "ms", {"canonical": True})
    assert convert(to_builtins(pipeline), Pipeline) == pipeline
    assert pipeline.title == "ms(mean_logits, canonical=True)"
    assert [Pipeline("mean_logits", name).translation_invariant for name in ("ms", "dc")] == [False, True]
    assert [Pipeline("mean_probs", name).preserves for name in ("cdc", "cms_ap", "cms_op")] == [None, "argmax", "order"]


def test_more_is_what_the_paper_does_not_have_and_all_is_both(monkeypatch):
    monkeypatch.setitem(CALIBRATORS, "mine", CALIBRATORS["ts"])
    more = [pipeline.title for pipeline in LISTS["more"]()]
    paper = {pipeline.title for pipeline in paper_pipelines()}
    assert more[:2] == ["identity(mean_logits)", "ts(mean_logits)"]
    assert "mine(mean_logits)" in more
    assert not set(more[2:]) & paper
    every = LISTS["all"]()
    assert len(every) == len(set(every)) == len(paper) + len(more) - 2


def test_rows_stand_in_the_groups_of_the_paper_some_in_two_and_others_at_the_end():
    groups = in_row_groups([*paper_pipelines(), Pipeline("single", "ts")])
    twice = [title for title, rows in groups.items() if Pipeline("mean_logits", "dc") in rows]
    assert [title[:3] for title in twice] == ["(b)", "(f)"]
    assert OTHER_ROWS == "Others"  # a letter would count headings that are not there
    assert groups[OTHER_ROWS] == [Pipeline("single", "ts")]
    assert [*in_row_groups([Pipeline("mean_probs", "ts")])] == [""]  # a heading would name ETS
    pair = [Pipeline("mean_probs", name) for name in ("ts", "ets")]
    assert [title[:3] for title in in_row_groups(pair)] == ["(e)"]
