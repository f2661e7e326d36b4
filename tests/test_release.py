"""What a release is made of: one version everywhere, a wheel with the package and nothing else, known extras."""

import configparser
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.parser import Parser
from itertools import chain
from pathlib import Path

import pytest

from segcal.version import __version__

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
WORKFLOW = ROOT / ".github" / "workflows" / "publish.yml"


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The wheel and the sdist, built by the backend itself: nothing is fetched."""
    pytest.importorskip("hatchling", reason="hatchling is not installed; it comes with the extra `dev`")
    folder = tmp_path_factory.mktemp("dist")
    code = "import sys; from hatchling import build as b; b.build_wheel(sys.argv[1]); b.build_sdist(sys.argv[1])"
    subprocess.run([sys.executable, "-c", code, str(folder)], cwd=ROOT, check=True, capture_output=True, timeout=300)
    return folder


@pytest.fixture(scope="module")
def wheel(built):
    with zipfile.ZipFile(built / f"segcal-{__version__}-py3-none-any.whl") as archive:
        yield archive


def sources():
    """Return every file of the package, by the name that it has in a wheel."""
    own = ROOT / "src" / "segcal"
    found = [path for path in own.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    return {path.relative_to(ROOT / "src").as_posix(): path for path in [*found, ROOT / "src" / "segcal_command.py"]}


def test_the_wheel_holds_the_package_and_nothing_else(wheel):
    info = f"segcal-{__version__}.dist-info/"
    files = {name for name in wheel.namelist() if not name.startswith(info)}
    assert files == set(sources())
    assert {Path(name).suffix for name in files} == {".py", ".typed", ".json", ".safetensors", ".js", ".css", ".html"}
    for name, path in sources().items():
        assert wheel.read(name) == path.read_bytes(), name
    assert {"segcal/py.typed", f"{info}licenses/LICENSE"} <= set(wheel.namelist())


def test_the_wheel_has_the_command_and_the_version(wheel):
    info = f"segcal-{__version__}.dist-info"
    points = configparser.ConfigParser()
    points.read_string(wheel.read(f"{info}/entry_points.txt").decode())
    assert dict(points["console_scripts"]) == {"segcal": "segcal_command:main"}
    metadata = Parser().parsestr(wheel.read(f"{info}/METADATA").decode())
    assert metadata["Version"] == __version__
    assert metadata["License-Expression"] == "Apache-2.0"


def test_links_of_the_long_description_lead_to_pages_of_the_site(wheel):
    """PyPI shows the README without the repository beside it."""
    metadata = Parser().parsestr(wheel.read(f"segcal-{__version__}.dist-info/METADATA").decode())
    links = re.findall(r"\]\(([^)]*)\)", metadata.get_payload())
    site = f"{PROJECT['urls']['Documentation']}/en/latest/"
    assert len(links) > 20
    assert [link for link in links if not link.startswith(("https://", "#"))] == []
    for page in (link.removeprefix(site) for link in links if link.startswith(site)):
        source, made = ROOT / "docs" / page.partition("#")[0], (".md", ".ipynb")
        readme = source.with_name("README.md") if source.name == "index.html" else source
        assert any(each.is_file() for each in (source, readme, *map(source.with_suffix, made))), page
    assert "docs/images/confidence.png" in (ROOT / "README.md").read_text("utf-8")  # relative links stay there


def test_the_wheel_runs_from_a_folder_of_its_own(wheel, tmp_path):
    """With the libraries of the tests and nothing of the repository."""
    wheel.extractall(tmp_path / "installed")
    command = [
        sys.executable,
        "-P",
        "-c",
        "import segcal; print(segcal.__file__); from segcal_command import main; main()",
    ]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "installed")}
    shown = subprocess.run(
        [*command, "--version"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
    )
    assert shown.returncode == 0, shown.stderr
    where, version = shown.stdout.split("\n")[:2]
    assert Path(where).is_relative_to(tmp_path)
    assert version.split()[-1] == __version__


def test_the_sdist_builds_and_tests_itself(built):
    with tarfile.open(built / f"segcal-{__version__}.tar.gz") as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {f"src/{name}" for name in sources()} <= names
    assert {
        "pyproject.toml",
        "LICENSE",
        "Makefile",
        "constraints.txt",
        "properdocs.yml",
        "tests/test_release.py",
    } <= names
    assert not [name for name in names if "__pycache__" in name or name.startswith(("build/", "dist/", ".venv"))]


def test_version_changelog_and_citation_agree():
    changelog = (ROOT / "CHANGELOG.md").read_text("utf-8")
    released = re.findall(r"^## \[(\d[^\]]*)\] - (\d{4}-\d\d-\d\d)$", changelog, flags=re.MULTILINE)
    assert released[0][0] == __version__
    citation = (ROOT / "CITATION.cff").read_text("utf-8")
    assert f"\nversion: {__version__}\ndate-released: {released[0][1]}\n" in citation


def test_extras_name_extras_and_the_start_page_lists_them():
    extras = PROJECT["optional-dependencies"]
    for name, needs in extras.items():
        for inner in re.findall(r"segcal\[([^\]]+)\]", " ".join(needs)):
            assert set(inner.split(",")) <= set(extras), name
    page = (ROOT / "docs" / "start.md").read_text("utf-8")
    for name in set(extras) - {"all", "dev", "peers"}:
        assert f"`{name}`" in page, name


def test_what_is_needed_directly_is_pinned():
    pinned = {line.partition("==")[0].lower() for line in (ROOT / "constraints.txt").read_text("utf-8").splitlines()}
    wanted = [*PROJECT["dependencies"], *chain(*PROJECT["optional-dependencies"].values())]
    names = {re.split(r"[\[<>=~!]", need)[0].lower() for need in wanted}
    assert names - {"segcal"} <= pinned


def steps():
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    return yaml.safe_load(WORKFLOW.read_text("utf-8"))["jobs"]


def test_the_workflow_tries_every_python_of_the_classifiers():
    listed = [one.rpartition(" ")[2] for one in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", one)]
    assert steps()["demo"]["strategy"]["matrix"]["python"] == listed
    assert PROJECT["requires-python"] == f">={listed[0]}"
    assert steps()["publish"]["permissions"] == {"id-token": "write"}
    assert [steps()[job].get("needs") for job in ("build", "demo", "publish")] == [None, "build", "demo"]


@pytest.mark.parametrize(("tag", "passes"), [(f"v{__version__}", True), ("v9.9.9", False), (__version__, False)])
def test_the_workflow_refuses_a_tag_that_is_not_the_version(tag, passes):
    (check,) = [step["run"] for step in steps()["build"]["steps"] if step.get("name", "").startswith("The tag")]
    ran = subprocess.run(
        ["bash", "-ec", check], cwd=ROOT, env={**os.environ, "GITHUB_REF_NAME": tag}, capture_output=True
    )
    assert (ran.returncode == 0) == passes, ran.stdout


def test_the_page_of_nnunet_installs_what_the_makefile_does():
    text = (ROOT / "Makefile").read_text("utf-8").replace("\\\n", " ")
    names = [name for line in re.findall(r"^NNUNET\w* := (.*)$", text, re.MULTILINE) for name in line.split()]
    page = (ROOT / "docs" / "howto" / "nnunet.md").read_text("utf-8").replace("\\\n", " ")
    installed = [name for line in re.findall(r"^pip install (.*)$", page, re.MULTILINE) for name in line.split()]
    assert len(names) > 15
    assert installed == ["'segcal[nifti]'", "--no-deps", *names]
