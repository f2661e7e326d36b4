"""The documents are true: their code runs, and what they list exists."""

import re
import shlex
from pathlib import Path

import numpy as np
import pytest

import segcal
from segcal.cli import COMMANDS, main

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text("utf-8")


def blocks(text: str, language: str) -> list[str]:
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)
    return [code for name, code in fenced if name == language]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working folder with twelve small cases, as the README assumes."""
    rng = np.random.default_rng(0)
    for name in ("predictions", "labels"):
        (tmp_path / name).mkdir()
    for number in range(12):
        logits = 4 * rng.normal(size=(3, 20, 24)).astype("float32")
        labels = (logits / 3 + rng.gumbel(size=logits.shape)).argmax(0).astype("uint8")
        np.save(tmp_path / "predictions" / f"case_{number:02d}.npy", logits)
        np.save(tmp_path / "labels" / f"case_{number:02d}.npy", labels)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_python_of_the_readme_runs_in_at_most_eight_lines(folder, capsys):
    (code,) = blocks(README, "python")
    assert len([line for line in code.splitlines() if line.strip()]) <= 8
    exec(compile(code, "README.md", "exec"), {})
    printed = capsys.readouterr().out
    assert "nll" in printed
    assert "every promise holds" in printed
    assert segcal.load(folder / "calibrator").calibrator.preserves in ("argmax", "order")


def test_the_commands_of_the_readme_run_in_the_order_in_which_they_stand(folder, capsys):
    lines = [line for block in blocks(README, "") for line in block.splitlines() if line.startswith("segcal ")]
    assert [shlex.split(line)[1] for line in lines] == ["check", "fit", "evaluate", "apply", "audit"]
    for line in lines:
        with pytest.raises(SystemExit) as stopped:
            main(shlex.split(line)[1:])
        assert stopped.value.code == 0, (line, capsys.readouterr())
    for path in sorted((folder / "predictions").iterdir()):
        calibrated = np.load(folder / "calibrated" / path.name)
        assert (calibrated.argmax(0) == np.load(path).argmax(0)).all()
        assert not np.array_equal(calibrated, np.load(path))


def test_the_make_targets_of_the_readme_exist():
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text("utf-8"), flags=re.MULTILINE)
    for target in re.findall(r"^make (\w+)", README, flags=re.MULTILINE):
        assert target in targets


@pytest.mark.parametrize(
    "document", sorted(path.relative_to(ROOT) for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
)
def test_links_between_documents_lead_somewhere(document):
    text = (ROOT / document).read_text("utf-8")
    for link in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
        if not link.startswith("http"):
            assert ((ROOT / document).parent / link).exists(), f"{document} links to {link}"


def test_every_public_name_has_a_docstring():
    for name in segcal.__all__:
        assert getattr(segcal, name).__doc__, name


def test_every_command_stands_in_the_command_document():
    text = (ROOT / "docs" / "cli.md").read_text("utf-8")
    for name in COMMANDS:
        assert f"segcal {name}" in text
