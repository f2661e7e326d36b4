"""A calibrator of a class outside the package: fitted, saved, loaded, applied, measured, exported, by one or many."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import segcal
from segcal.calibrators.convex import ConvexCalibrator, Frame
from segcal.cli import main
from segcal.errors import ArtifactError, InputError

MODULE = '''
import torch
from torch import nn

import segcal
from segcal.calibrators.convex import ConvexCalibrator, Frame

class Root(ConvexCalibrator):
    """Distances to the winner, and the roots of them."""

    translation_invariant, preserves = True, "order"
    variables = ("factors",)

    def __init__(self, num_classes, largest=100.0):
        super().__init__(num_classes, largest=largest)
        self.factors = nn.Parameter(torch.tensor([1.0, 0.0], dtype=torch.float64))

    def features(self, logits):
        behind = logits.amax(1, keepdim=True) - logits
        return torch.stack([-behind, -behind.sqrt()], dim=-1)

    def scores(self, logits, context=None):
        return self.features(logits) @ self.factors.to(logits.dtype)

    def frame(self, logits, context=None):
        return Frame(self.features(logits).flatten(1))

    def bounds(self):
        low = torch.tensor([1e-3, 0.0], dtype=torch.float64)
        return low, torch.full_like(low, self.options["largest"])

class Bent(segcal.Calibrator):
    """One factor, fitted by gradient."""

    translation_invariant, preserves, fitted_by = True, "order", "gradient"

    def __init__(self, num_classes):
        super().__init__(num_classes)
        self.factor = nn.Parameter(torch.ones((), dtype=torch.float64))

    def scores(self, logits, context=None):
        return (logits - logits.amax(1, keepdim=True)) * self.factor.to(logits.dtype)

    def become_temperature(self, temperature):
        self.factor.data.fill_(1 / temperature)

    def positive(self):
        return {"factor": 1e-3}
'''


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A module of the user's, and cases in the working folder."""
    (tmp_path / "mine.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    rng = np.random.default_rng(0)
    for name in ("predictions", "labels"):
        (tmp_path / name).mkdir()
    for number in range(4):
        logits = 4 * rng.normal(size=(3, 9, 8)).astype("float32")
        np.save(tmp_path / "predictions" / f"{number}.npy", logits)
        np.save(tmp_path / "labels" / f"{number}.npy", (logits / 3 + rng.gumbel(size=logits.shape)).argmax(0))
    import mine

    yield mine
    sys.modules.pop("mine", None)


def opened():
    return segcal.open_cases("predictions", labels="labels", kind="logits")


@pytest.mark.parametrize("name", ["Root", "Bent"])
def test_it_goes_the_whole_way(mine, name):
    kind, cases = getattr(mine, name), opened()
    fitted = segcal.fit(kind(3), cases)
    assert segcal.evaluate(cases, fitted, ["nll", "flip_rate"], replicates=10).change["nll"].value < 0
    assert segcal.audit(fitted, cases).passed
    segcal.save(fitted, "own")
    again = segcal.load("own", calibrators=[segcal.make_calibrator("ts", 3).__class__, kind])
    logits = torch.randn(2, 3, 5, 4)
    assert type(again.calibrator) is kind
    assert torch.equal(again.calibrator(logits), fitted.calibrator(logits))
    assert segcal.apply(again, cases, "calibrated").flips == 0
    assert segcal.export(again, "own.pt2").flips == 0
    if name == "Root":
        pytest.importorskip("onnxscript")
        assert segcal.export(again, "own.onnx").flips == 0


def test_its_options_come_back_and_its_optimum_is_the_loops(mine):
    fitted = segcal.fit(mine.Root(3, largest=2.0), opened())
    segcal.save(fitted, "own")
    again = segcal.load("own", [mine.Root])
    assert again.calibrator.options == {"largest": 2.0}
    assert json.loads(Path("own/calibrator.json").read_text("utf-8"))["name"] == "mine:Root"
    # The loss of a plain loop has no smaller value nearby.
    case_logits = [np.load(f"predictions/{k}.npy").astype(float).reshape(3, -1) for k in range(4)]
    labels = [np.load(f"labels/{k}.npy").ravel() for k in range(4)]

    def loss(first, second):
        values = []
        for z, y in zip(case_logits, labels, strict=True):
            d = z.max(0) - z
            s = -first * d - second * np.sqrt(d)
            values.append((np.log(np.exp(s).sum(0)) - s[y, np.arange(len(y))]).mean())
        return np.mean(values)

    a, b = again.calibrator.factors.tolist()
    for da, db in ((1e-3, 0), (-1e-3, 0), (0, 1e-3), (0, -1e-3)):
        if b + db >= 0:
            assert loss(a, b) <= loss(a + da, b + db) + 1e-9


def test_what_a_file_names_is_never_imported(mine):
    segcal.save(segcal.fit(mine.Root(3), opened()), "own")
    del sys.modules["mine"]
    with pytest.raises(ArtifactError) as told:
        segcal.load("own")
    assert str(told.value) == (
        "own holds a calibrator of the class mine:Root, but what a file names is not imported. Pass the class: "
        "calibrators=[Root], or --calibrator-class mine:Root on the command line."
    )
    assert "mine" not in sys.modules
    with pytest.raises(ArtifactError, match="what a file names is not imported"):
        segcal.load("own", [mine.Bent])


def run(*words):
    with pytest.raises(SystemExit) as stopped:
        main([str(word) for word in words])
    return stopped.value.code


def test_commands_take_the_class_from_who_calls_them(mine, capsys):
    segcal.save(segcal.fit(mine.Root(3), opened()), "own")
    del sys.modules["mine"]
    sys.path.remove(str(mine.__file__.rsplit("/", 1)[0]))
    assert run("audit", "own", "--calibrator-class", "mine:Root") == 0
    assert run("apply", "own", "predictions", "--kind", "logits", "-o", "out") == 2
    assert "--calibrator-class mine:Root on the command line" in capsys.readouterr().err
    for wrong in ("mine", "mine:Nothing", "nowhere:Root", ":"):
        assert run("audit", "own", "--calibrator-class", wrong) == 2
        assert f"--calibrator-class is {wrong}, but it cannot be imported" in capsys.readouterr().err


def test_several_workers_know_it(mine):
    cases = opened()
    fitted = segcal.fit(mine.Root(3), cases, config=segcal.FitConfig(voxels="all"), workers=2)
    one, two = (segcal.evaluate(cases, fitted, ["nll"], replicates=10, workers=n).after["nll"].value for n in (1, 2))
    assert one == two


class Lost(ConvexCalibrator):
    """Does not keep an option."""

    translation_invariant, preserves, variables = True, "order", ()

    def __init__(self, num_classes, power=2):
        super().__init__(num_classes)

    def scores(self, logits, context=None):
        return logits

    def frame(self, logits, context=None):
        return Frame(logits)

    def bounds(self):
        return torch.zeros(0), torch.zeros(0)


class Undeclared(segcal.Calibrator):
    """Says nothing of itself."""

    def scores(self, logits, context=None):
        return logits


def test_a_class_that_does_not_say_enough_is_told_what_is_missing(tmp_path):
    logits, labels = np.random.default_rng(0).normal(size=(2, 3, 4, 4)), np.zeros((2, 4, 4), int)
    with pytest.raises(
        InputError, match="translation_invariant of Undeclared is not there, but True or False is needed"
    ):
        segcal.fit(Undeclared(3), logits, labels)
    Undeclared.translation_invariant, Undeclared.preserves = True, "mask"
    with pytest.raises(InputError, match="preserves of Undeclared is 'mask', but 'argmax' or 'order' is needed"):
        segcal.fit(Undeclared(3), logits, labels)
    Undeclared.preserves, Undeclared.fitted_by = None, "gradient"
    with pytest.raises(InputError, match="Undeclared is fitted by gradient, but has no become_temperature"):
        segcal.fit(Undeclared(3), logits, labels)
    fitted = segcal.fit("ts", logits, labels)
    object.__setattr__(fitted, "calibrator", Lost(3))
    with pytest.raises(
        InputError, match=r"Lost takes power and does not keep it.*super\(\).__init__\(num_classes, power="
    ):
        segcal.save(fitted, tmp_path / "lost")
