"""A part may come from anywhere: nothing of it is executed, read outside of it, or written outside of the target."""

import json
import os
import zlib

import msgspec
import numpy as np
import pytest

import segcal
from segcal.cases.records import FOLDER as RECORDS
from segcal.errors import InputError
from segcal.scale.cache import HEAD, CaseCache, Line, UnknownResultError, pack, unpack
from segcal.scale.part import FACTS, FOLDER, Part
from segcal.statistics.reliability import Curve
from tests.faults.places import files_of

CHECK = "check predictions labels --kind logits"
APPLY = "apply cal predictions --kind logits"
TRUST = "trust cal predictions --kind logits --level 0.6 --masks"


@pytest.fixture
def work(work):
    """A user's own file beside the rest."""
    (work / "mine").mkdir()
    (work / "mine" / "secret.npy").write_text("precious")
    return work


@pytest.fixture
def part(work, run):
    """Make the only part of a command."""

    def make(command):
        assert run(f"{command} --num-parts 1 --part-id 0 -o part")[0] == 0
        return work / "part"

    return make


def refused(run, work, command, text):
    """Merge, and see that it is refused in one sentence and that nothing around the target has changed."""
    before = {name: content for name, content in files_of(work).items() if not name.startswith("out/")}
    code, said = run(f"merge part -o out -- {command}")
    assert (code, said.count("\n")) == (2, 1), said
    assert text in said
    after = {name: content for name, content in files_of(work).items() if not name.startswith("out/")}
    assert after == before
    assert b"precious" not in b"".join(files_of(work / "out").values())


def change_facts(part, **changes):
    path = part / FOLDER / FACTS
    facts = json.loads(path.read_text())
    facts["settings"] |= changes.pop("settings", {})
    path.write_text(json.dumps(facts | changes))


def change_block(part, change):
    """Change the results in all blocks, and keep them well-formed."""
    entries = CaseCache(part / FOLDER).entries.values()
    for path in (part / FOLDER).glob("*.results"):
        whole, blocks = path.read_bytes(), []
        for line, start in ((entry.line, entry.start) for entry in entries if entry.path == path):
            content = change(line, whole[start : start + line.size])
            blocks.append((Line(line.about, line.case, line.key, line.failed, len(content)), content))
        table = msgspec.msgpack.encode([line for line, _ in blocks])
        path.write_bytes(b"".join([HEAD, len(table).to_bytes(8, "big"), table, *(content for _, content in blocks)]))


@pytest.mark.parametrize(
    "settings",
    [
        {"command": '"fit"'},
        {"paths": '[{"path": "/etc"}]'},
        {"paths": '[{"path": "https://attacker.example/predictions"}]'},
        {"images": '{"path": "s3://attacker/images"}'},
        {"report": '{"path": "mine/secret.npy"}', "overwrite": "true"},
        {"device": '"cuda"'},
        {"splits": '{"path": "mine/secret.npy"}'},
    ],
)
def test_options_of_a_part_are_compared_and_never_used(settings, part, work, run, monkeypatch):
    change_facts(part(CHECK), settings=settings)
    monkeypatch.setattr("segcal.cases.remote.Remote.listing", lambda self: pytest.fail(self.url))
    refused(run, work, CHECK, "part was made with another ")


def test_the_command_is_the_user_s(part, work, run):
    made = part(CHECK)
    assert run("merge part -o out")[1].startswith("error: nothing is after --, but the command that made the shards is")
    assert "'merge' is after --, but" in run("merge part -o out -- merge part -o x")[1]
    assert "'demo' is after --, but" in run("merge part -o out -- demo")[1]
    assert not (work / "out").exists()
    assert run(f"merge part -o out -- {CHECK} -o elsewhere --num-parts 1 --part-id 0")[0] == 0  # as it was given
    assert [path.name for path in (work / "out").iterdir()] == ["check.json"]
    assert not (work / "elsewhere").exists()
    assert run(f"merge part -o other -- {CHECK} --ignore 7")[1].startswith(
        "error: part was made with another ignore (null, not 7), but the command must be the one that made the shards."
    )
    assert made.is_dir()


def test_a_moved_part_is_the_same(part, work, run):
    part(TRUST).rename(work / "moved")
    assert run(f"merge moved -o out -- {TRUST}") == (0, "")
    assert sorted(path.name for path in (work / "out" / "masks").iterdir()) == ["a.npy", "b.npy", "c.npy"]
    (work / "part").mkdir()
    (work / "part" / "masks").mkdir()
    (work / "part" / "masks" / "a.npy").write_text("where it lay")
    assert b"where it lay" not in files_of(work / "out").values()


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("/", "{work}/mine/secret.npy"),
        ("{part}/../mine", "{part}/../mine/secret.npy"),
        ("{work}/mine", "../mine/secret.npy"),
        ("/", "/a.npy"),
    ],
)
def test_names_of_files_lead_nowhere_else(folder, name, part, work, run):
    made = part(TRUST)
    folder, name = (text.format(part=made, work=work) for text in (folder, name))
    masks = [entry.line.about for entry in CaseCache(made / FOLDER).entries.values() if "Mask" in entry.line.about]
    assert masks
    forged = zlib.compress(msgspec.msgpack.encode({"": "path", "of": name}), 1)
    change_block(made, lambda line, content: forged if line.about in masks else content)
    change_facts(made, folder=folder)
    code, said = run(f"merge part -o out -- {TRUST}")
    assert (code, said.count("\n")) == (2, 1), said
    assert "Run the shard again." in said
    assert (work / "mine" / "secret.npy").read_text() == "precious"
    assert b"precious" not in files_of(work / "out").values()


@pytest.mark.parametrize("name", ["../mine/secret.npy", "/etc/hostname", "link.npy", "notes.txt", ".segcal/a.json"])
def test_records_of_a_part_copy_nothing_but_its_own(name, part, work, run):
    made = part(APPLY)
    (made / "link.npy").symlink_to(work / "mine" / "secret.npy")
    (made / "notes.txt").write_text("theirs")
    (work / "out").mkdir()
    assert run(f"{APPLY} -o out")[0] == 0
    (work / "out" / "notes.txt").write_text("mine")
    path = made / RECORDS / "a.json"
    record = json.loads(path.read_text())
    digest = segcal.cases.records.content_digest(made / name)
    path.write_text(json.dumps(record | {"files": {**record["files"], name: digest}, "made_from": record["made_from"]}))
    change_block(made, lambda line, content: content)
    np.save("predictions/a.npy", np.load("predictions/a.npy"))
    code, said = run(f"merge part -o out --overwrite -- {APPLY}")
    assert code == 2, said
    assert (work / "mine" / "secret.npy").read_text() == "precious"
    assert (work / "out" / "notes.txt").read_text() == "mine"
    assert b"precious" not in files_of(work / "out").values()


@pytest.mark.parametrize("name", [FOLDER, f"{FOLDER}/{FACTS}", "a.npy", RECORDS])
def test_links_in_a_part_are_refused(name, part, work, run):
    made = part(APPLY)
    (made / name).rename(work / "mine" / "moved")
    (made / name).symlink_to(work / "mine" / "moved")
    refused(run, work, APPLY, "leads out of the shard part, but a shard is one folder without links.")


def test_blocks_that_are_links_or_pipes_are_refused(part, work, run):
    made = part(CHECK)
    (block,) = (made / FOLDER).glob("*.results")
    block.rename(work / "mine" / "block")
    for make in (lambda: block.symlink_to(work / "mine" / "block"), lambda: os.mkfifo(block)):
        make()
        code, said = run(f"merge part -o out -- {CHECK}")
        assert (code, said.count("\n")) == (2, 1)
        assert "is damaged (it is a link, or no file), but results of a shard are needed." in said
        block.unlink()


@pytest.mark.parametrize(
    ("facts", "text"),
    [
        ({"of": 2**62}, f"of {2**62} shards {2**62 - 1} are missing (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, ...)"),
        ({"of": -1}, "is damaged (Expected `int` >= 0 - at `$.of`)"),
        ({"part": 7}, "part is shard 7 of 1, but they count from 0. Run it again."),
        ({"settings": [], "part": "0"}, "is damaged (Expected"),
        ({"\ud800": 0}, "is damaged ('utf-8' codec can't encode character"),
        ({"segcal": "0\x1b[31m"}, "part was made by segcal 0"),
    ],
)
def test_facts_that_cannot_be_are_one_sentence(facts, text, part, work, run):
    path = part(CHECK) / FOLDER / FACTS
    path.write_text(json.dumps(json.loads(path.read_text()) | facts))
    refused(run, work, CHECK, text)


def of(kind, *values):
    return zlib.compress(msgspec.msgpack.encode({"": kind, "of": list(values)}), 1)


WRONG = [
    of("Curve", "a", "b", "c"),
    of("Curve", 1, 2),
    of("CaseRow", *[None] * 8),
    of("Seen", 1, 2, 3, 4),
    of("Popen", ["touch", "x"]),
    of("array", "O", [1], "C", b"12345678"),
    of("array", "<f8", [2**40], "C", b"12345678"),
    zlib.compress(b"\x91" * 100_000),
    pack({"a": 1})[:-3],
    pack({"a": 1}) + b"more",
    b"nothing",
]


def test_results_of_another_type_are_no_results(part, work, run):
    made = part(CHECK)
    for content in WRONG:
        with pytest.raises(UnknownResultError):
            unpack(content)
        change_block(made, lambda line, _, content=content: content)
        refused(run, work, CHECK, "is damaged (")


def test_a_result_as_it_is_declared_comes_back():
    curve = Curve(np.arange(3), np.arange(3) / 2, np.ones(3))
    found = unpack(pack({"a": (curve, None)}))["a"][0]
    assert all(
        np.array_equal(one, other) for one, other in zip(vars(found).values(), vars(curve).values(), strict=True)
    )


def test_a_small_block_cannot_ask_for_much_memory(monkeypatch, part, work, run):
    monkeypatch.setattr("segcal.scale.cache.memory_limit", lambda: 1 << 20)
    bomb = zlib.compress(msgspec.msgpack.encode(bytes(1 << 24)), 9)
    with pytest.raises(UnknownResultError, match="larger than the memory of this machine"):
        unpack(bomb)
    made = part(CHECK)
    (block,) = (made / FOLDER).glob("*.results")
    with block.open("r+b") as file:  # a table of a terabyte, of which nothing is there
        file.write(HEAD + (1 << 40).to_bytes(8, "big"))
        file.truncate(1 << 41)
    code, said = run(f"merge part -o out -- {CHECK}")
    block.unlink()
    assert (code, said.count("\n")) == (2, 1)
    assert "is damaged (its table is cut off, or too large), but results of a shard are needed." in said


def test_results_of_other_shapes_are_one_sentence(part, work, run):
    command = "evaluate predictions labels --kind logits"
    made = part(command)
    table = Curve(np.zeros(3, np.int64), np.zeros(2), np.zeros(5))

    def wrong(line, content):
        found = unpack(content)
        return pack(tuple(table for _ in found) if isinstance(found, tuple) else table)

    change_block(made, wrong)
    refused(run, work, command, "hold results that cannot be put together (")


def test_a_program_is_told_too(tmp_path):
    cases = segcal.ArrayCases([np.eye(2, 5)] * 2)
    with Part(tmp_path / "part", [cases]) as one:
        segcal.audit(segcal.make_calibrator("ts", 2), cases, one)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "part" / FOLDER).rename(tmp_path / "elsewhere" / FOLDER)
    (tmp_path / "part" / FOLDER).symlink_to(tmp_path / "elsewhere" / FOLDER)
    with pytest.raises(InputError, match=r"leads out of the shard .*part, but a shard is one folder without links\."):
        segcal.merge([tmp_path / "part"], cases)
