"""The documents are true: their code runs, what they list exists, and their tables are what the registries hold."""

import importlib.util
import re
import shlex
import shutil
import tomllib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import segcal
from segcal.cli import COMMANDS, main
from segcal.report.document import CurveLists, Curves
from segcal.report.images import SliceMaps, encode_indices, encode_jpeg, encode_values

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text("utf-8")
DOCS = ROOT / "docs"
# Pages of frameworks run with the frameworks, in tests/contracts/test_howto.py.
FRAMEWORKS = {
    f"howto/{name}.md" for name in ("clinic", "lightning", "monai", "nnunet", "onnx", "transformers", "viewers")
}
PAGES = [path for path in sorted(DOCS.rglob("*.md")) if path.relative_to(DOCS).as_posix() not in FRAMEWORKS]


def load(name, path):
    """Return a script as a module."""
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def blocks(text: str, language: str) -> list[str]:
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)
    return [code for name, code in fenced if name == language]


def made_up(classes, seed=0, count=12):
    """Yield the names, logits and labels of small cases."""
    rng = np.random.default_rng(seed)
    for number in range(count):
        logits = 4 * rng.normal(size=(classes, 20, 24)).astype("float32")
        yield f"case_{number:02d}", logits, (logits / 3 + rng.gumbel(size=logits.shape)).argmax(0).astype("uint8")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working folder with twelve small cases, as the README assumes."""
    for name in ("predictions", "labels"):
        (tmp_path / name).mkdir()
    for name, logits, labels in made_up(3):
        np.save(tmp_path / "predictions" / f"{name}.npy", logits)
        np.save(tmp_path / "labels" / f"{name}.npy", labels)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def array_cases(classes=3, seed=0):
    _, logits, labels = zip(*made_up(classes, seed), strict=True)
    return segcal.ArrayCases(logits=list(logits), labels=list(labels))


def run_benchmark():
    """Leave the results of a small benchmark in the working folder, as `docs/report.md` assumes."""
    Path("protocol.toml").write_text(
        """
        repeats = 1
        metrics = ["nll", "dice", "ece", "ba_ece", "ace", "flip_rate", "free_energy_std"]
        pipelines = [{pooling = "single", calibrator = "identity"}, {pooling = "single", calibrator = "ts"}]
        split = {cal = 5, val = 3}
        bootstrap = {replicates = 20}
        studies = []
        tasks = [{name = "blobs", members = ["predictions"], labels = "labels", kind = "logits"}]
        """,
        "utf-8",
    )
    with pytest.raises(SystemExit) as stopped:
        main(["benchmark", "protocol.toml", "-o", "results"])
    assert stopped.value.code == 0


def one_network():
    """Return a network with dropout, whose images are the logits of the working folder, and leave two checkpoints."""
    network = torch.nn.Sequential(torch.nn.Dropout(0.3), torch.nn.Conv2d(3, 3, 1)).eval()
    torch.nn.init.dirac_(network[1].weight)
    Path("checkpoints").mkdir()
    for number in range(2):
        torch.nn.init.constant_(network[1].bias, 0.1 * number)
        torch.save(network.state_dict(), f"checkpoints/{number}.pt")
    images = {path.stem: torch.from_numpy(np.load(path)) for path in sorted(Path("predictions").iterdir())}
    return {"network": network, "images": images}


def rated():
    """Leave label maps of three raters in the working folder."""
    for number, rater in enumerate("abc"):
        Path(f"rater_{rater}").mkdir()
        for name, logits, _ in made_up(3):
            rng = np.random.default_rng([number, int(name[-2:])])
            labels = (logits / 3 + rng.gumbel(size=logits.shape)).argmax(0).astype("uint8")
            np.save(Path(f"rater_{rater}") / f"{name}.npy", labels)


def known_to(page):
    """Return what the reader of a page has already, by name: everything that its blocks use and do not make."""
    curve = {"count": [5, 20], "confidence": [0.6, 0.9], "accuracy": [0.5, 0.8]}
    known = {"segcal": segcal, "before": curve, "after": curve}
    if page == "report.md":
        run_benchmark()
    if page == "data-format.md":
        for member in ("member_0", "member_1"):
            shutil.copytree("predictions", member)
    if page == "howto/members.md":
        known |= one_network()
    if page == "howto/raters.md":
        rated()
    if page in ("calibrators.md", "fitting.md", "metrics.md"):
        known["cases"] = known["cal"] = array_cases(11 if page == "calibrators.md" else 3)
        known["val"] = array_cases(11, seed=1)
        known["calibrator"] = segcal.make_calibrator("ts", 3)
    return known


@pytest.mark.filterwarnings("ignore::segcal.errors.SuspicionWarning")
@pytest.mark.parametrize(
    "page", [path.relative_to(DOCS).as_posix() for path in PAGES if "```python" in path.read_text("utf-8")]
)
def test_the_python_of_a_page_runs_from_top_to_bottom(page, folder):
    code = blocks((ROOT / "docs" / page).read_text("utf-8"), "python")
    assert code
    names = known_to(page)
    for block in code:
        exec(compile(block, page, "exec"), names)


def test_the_commands_of_raters_run(folder, capsys):
    rated()
    page = (DOCS / "howto" / "raters.md").read_text("utf-8")
    for line in blocks(page, "")[0].splitlines():
        with pytest.raises(SystemExit) as stopped:
            main([*shlex.split(line)[1:], "--json"])
        assert stopped.value.code == 0, (line, capsys.readouterr())
    assert "rater_entropy" in capsys.readouterr().out


def test_members_of_one_network_are_members(folder):
    code = blocks((DOCS / "howto" / "members.md").read_text("utf-8"), "python")
    names = known_to("howto/members.md")
    for block in code[:-1]:
        exec(compile(block, "members.md", "exec"), names)
    image = np.load(folder / "predictions" / "case_03.npy")

    def read(kind):
        return [np.load(path / "case_03.npy") for path in sorted((folder / "members").glob(f"{kind}_*"))]

    for flipped in read("flip"):  # a network that sees one voxel at a time gives the same whatever way it is turned
        np.testing.assert_allclose(flipped, read("flip")[0], atol=1e-5)
    dropped = read("dropout")
    assert len({one.tobytes() for one in dropped}) == len(dropped) == 5
    assert not names["network"][0].training
    np.testing.assert_allclose(read("checkpoint")[1], image + 0.1, atol=1e-5)


def test_the_table_of_the_readme_is_that_of_a_demonstration(tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    figures = load("figures", DOCS / "figures.py")
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "demo.csv").write_text(
        "group,,NLL,NLL low,NLL high,DSC,ECE,BA-ECE,ACE,Flip\n"
        "roads,Conic scaling (default),0.1594,0.1,0.2,0.7176,0.018,0.035,0.026,\n"
        "roads,Matrix scaling,0.1639,0.1,0.2,0.7017,0.022,0.046,0.025,0.0185\n"
    )
    rows = figures.readme_table(tmp_path).splitlines()[2:]
    assert rows == [
        "| roads | **Conic scaling (default)** | .159 | .018 | .035 | .026 | .718 | none |",
        "|  | Matrix scaling | .164 | .022 | .046 | .025 | .702 | 1.85 % |",
    ]
    text = (ROOT / "README.md").read_text("utf-8")
    (tmp_path / "README.md").write_text(text)
    figures.write_readme(tmp_path, tmp_path / "README.md")
    found = (tmp_path / "README.md").read_text("utf-8")
    head = figures.readme_table(tmp_path)
    assert head in found
    before, after = found.split(head)
    assert text.startswith(before)
    assert text.endswith(after)
    assert after.startswith("\n\n")


def test_the_picture_of_the_readme_has_both_maps_on_one_scale(tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    figures = load("figures", DOCS / "figures.py")
    truth = np.zeros((20, 24), int)
    truth[5:9, 6:15] = 1
    mask, sure = np.roll(truth, 1), np.full((20, 24), 0.97)
    maps = SliceMaps(
        0, encode_indices(truth), encode_indices(mask), encode_values(sure, 0, 1), encode_values(sure / 2, 0, 1),
        image=encode_jpeg(np.full((1, 20, 24), 90, np.uint8)),
    )  # fmt: skip
    curve = Curves(CurveLists([100, 10], [0.6, 0.9], [0.5, 0.9]))
    section = SimpleNamespace(baseline="a", chosen="b", curves={"a": curve, "b": curve})
    drawn = figures.confidence_figure(section, maps).axes
    before, after = (axis.images[0] for axis in drawn[1:3])
    assert before.norm is after.norm
    assert [float(one.get_array().max()) for one in (before, after)] == pytest.approx([0.97, 0.485], abs=0.003)
    assert drawn[0].get_xlim() == drawn[1].get_xlim() == drawn[2].get_xlim()
    assert [len(line.get_xdata()) for line in drawn[4].lines] == [2, 1, 1]  # bins of fewer than 50 voxels are left out


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda path: path.name)
def test_tables_of_registries_are_what_the_registries_hold(page):
    text = page.read_text("utf-8")
    assert load("tables", ROOT / "docs" / "tables.py").renewed(text) == text, "run: make listings"


# Pages whose tables are made from a registry.
MADE = {
    "calibrators.md": "calibrators", "metrics.md": "metrics", "losses.md": "losses", "data-format.md": "formats",
    "protocol.md": "studies",
}  # fmt: skip


@pytest.mark.parametrize("page", MADE)
def test_a_page_of_a_registry_has_its_table(page):
    assert f"<!-- table: {MADE[page]} -->" in (ROOT / "docs" / page).read_text("utf-8")


def test_the_python_of_the_readme_runs_in_at_most_eight_lines(folder, capsys):
    (code,) = blocks(README, "python")
    assert len([line for line in code.splitlines() if line.strip()]) <= 8
    exec(compile(code, "README.md", "exec"), {})
    printed = capsys.readouterr().out
    assert "nll" in printed
    assert "every promise holds" in printed
    assert segcal.load(folder / "fitted").calibrator.preserves in ("argmax", "order")


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


def test_every_public_name_has_a_docstring():
    for name in segcal.__all__:
        assert getattr(segcal, name).__doc__, name


def test_every_command_stands_in_the_command_document():
    text = (ROOT / "docs" / "cli.md").read_text("utf-8")
    for name in COMMANDS:
        assert f"segcal {name}" in text


def test_the_package_is_typed_and_says_where_its_documentation_is():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert (Path(segcal.__file__).parent / "py.typed").exists()
    assert "Typing :: Typed" in project["classifiers"]
    assert project["urls"]["Documentation"].startswith("https://")
