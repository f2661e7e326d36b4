"""Every public function, called with every kind of nonsense: a result, or one sentence that says what to do.

For each parameter of each public function, and each of its documented methods, all of :func:`nonsense` is passed while
the other arguments are valid. Nothing but a result, an error of segcal's in its one form, or what the operating system
says of a path may come back. An error inside a function of the user's own is the user's.
"""

import inspect
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import segcal
from segcal import losses, metrics
from segcal.errors import SegcalError

# `<name> <what it is>, but <what is needed>. <What to do>.`, or a name that is none of a list; never several lines.
FORM = re.compile(r".+[^ ], but .+\. .+\.|.*no [\w ]+ is named .+\. Choose one of: .+\.|.+ has no option .+\. .+\.")


class SomeClass:
    """A class where an object is needed; as a function it takes anything."""

    def __init__(self, *args, **named):
        pass


def nonsense(world):
    """Values that no or few parameters can be, by a name of each."""
    return {
        "None": None,
        "empty text": "",
        "text": "x",
        "zero byte": "a\0b",
        "long text": "x" * 5000,
        "bytes": b"x",
        "True": True,
        "negative": -1,
        "zero": 0,
        "huge": 10**30,
        "half": 0.5,
        "nan": float("nan"),
        "inf": float("inf"),
        "complex": 1j,
        "list": [],
        "list of None": [None],
        "list of lists": [[1, 2], [3]],
        "tuple": (1, "x"),
        "dict": {},
        "dict of None": {"x": None},
        "dict by number": {1: 2},
        "set": {"x"},
        "object": object(),
        "class": SomeClass,
        "own class": segcal.FitConfig,
        "function": lambda *a, **b: None,
        "generator": (number for number in range(3)),
        "path to nothing": Path("nothing/here"),
        "texts": np.array(["a", "b"]),
        "objects": np.array([None, object()], dtype=object),
        "complex array": np.ones((2, 3, 4, 4), complex),
        "no array": np.float32(2),
        "nan array": np.full((2, 3, 4, 4), np.nan, "float32"),
        "bool tensor": torch.ones(2, 3, 4, 4, dtype=torch.bool),
        "complex tensor": torch.ones(2, 3, 4, 4, dtype=torch.complex64),
        "number tensor": torch.tensor(1.0),
        "empty tensor": torch.empty(0),
        "no batch": torch.empty(0, 3, 4, 4),
        "no voxels": torch.empty(2, 3, 0, 4),
        "sparse tensor": torch.eye(3).to_sparse(),
        "meta tensor": torch.empty(2, 3, 4, 4, device="meta"),
        "context": segcal.Context(),
        "context of nonsense": segcal.Context("x", 3, {}),
        "config": segcal.FitConfig(),
        "calibrator": segcal.make_calibrator("ts", 5),
        "fitted": world.fitted,
        "cases": world.cases,
        "evaluation": world.evaluation,
        "loss": segcal.make_loss("ce"),
        "metric": segcal.METRICS["ece"],
        "error": ValueError("x"),
        "device": torch.device("cuda", 99),
        "dtype": torch.int8,
    }


class World(NamedTuple):
    """What valid calls need; folders are the test's own."""

    logits: np.ndarray
    labels: np.ndarray
    cases: Any
    fitted: Any
    trusted: Any
    evaluation: Any
    folder: Path


class Call(NamedTuple):
    """A public callable, and valid arguments for it."""

    function: Callable[..., Any]
    valid: Callable[[World], dict[str, Any]]


def method(of, name, **valid):
    """Return a call of a method of something that the world makes."""
    return lambda world: Call(getattr(of(world), name), lambda w: valid)


def _network():
    return torch.nn.Conv2d(2, 3, 1)


def _tensors(w):
    return {"logits": torch.from_numpy(w.logits), "labels": torch.from_numpy(w.labels)}


def _fewer(w):
    return {"replicates": 20, "metrics": ["nll", "flip_rate"]}


def _one_case(w):
    return {"logits": list(w.logits[:1]), "labels": list(w.labels[:1])}


def _masks(w, labels):
    return segcal.MaskCases(w.folder / "labels", labels)


def _margins(w):
    return segcal.fit_margins(_masks(w, w.folder / "labels"), level=0.5)


# A public name without arguments, or of results that only segcal makes.
NOT_CALLED = {
    "CALIBRATORS", "LOSSES", "METRICS", "POOLINGS", "metrics", "Adapted", "Applied", "Audit", "Calibrator", "Card",
    "Case", "CaseError", "Cases", "CheckResult", "Context", "Decisions", "Evaluation", "Fitted", "Margins", "Monitored",
    "Objects", "Trust",
    "ArtifactError", "InputError", "SegcalError", "SuspicionWarning",
}  # fmt: skip

CALLS: dict[str, Callable[[World], Call]] = {
    "ArrayCases": lambda w: Call(segcal.ArrayCases, _one_case),
    "FitConfig": lambda w: Call(segcal.FitConfig, lambda w: {}),
    "MaskCases": lambda w: Call(
        segcal.MaskCases, lambda w: {"predictions": w.folder / "labels", "labels": w.folder / "labels"}
    ),
    "Part": lambda w: Call(segcal.Part, lambda w: {"folder": w.folder / "part", "collections": [w.cases]}),
    "ReadOptions": lambda w: Call(
        lambda **given: segcal.open_cases(w.folder / "predictions", options=segcal.ReadOptions(**given)),
        lambda w: {"kind": "logits"},
    ),
    "adapt": lambda w: Call(segcal.adapt, lambda w: {"fitted": w.trusted, "cases": w.cases}),
    "apply": lambda w: Call(segcal.apply, lambda w: {"fitted": w.fitted, "cases": w.cases, "folder": w.folder / "out"}),
    "apply_margins": lambda w: Call(
        segcal.apply_margins,
        lambda w: {"margins": _margins(w), "masks": _masks(w, None), "folder": w.folder / "grown"},
    ),
    "as_cases": lambda w: Call(segcal.as_cases, lambda w: {"data": w.logits, "labels": w.labels}),
    "attach": lambda w: Call(segcal.attach, lambda w: {"model": _network(), "calibrator": w.fitted}),
    "audit": lambda w: Call(segcal.audit, lambda w: {"calibrator": w.fitted, "cases": w.cases}),
    "card": lambda w: Call(
        segcal.card, lambda w: {"fitted": w.fitted, "results": w.evaluation, "path": w.folder / "card.md"}
    ),
    "check": lambda w: Call(segcal.check, lambda w: {"cases": w.logits, "labels": w.labels}),
    "choose": lambda w: Call(segcal.choose, lambda w: {"cases": w.logits, "labels": w.labels, "names": ["ts"]}),
    "convert": lambda w: Call(segcal.convert, lambda w: {"cases": w.cases, "folder": w.folder / "store"}),
    "decide": lambda w: Call(segcal.decide, lambda w: {"fitted": w.trusted, "cases": w.cases, "rule": "dice"}),
    "evaluate": lambda w: Call(segcal.evaluate, lambda w: {"cases": w.cases, "calibrator": w.fitted, **_fewer(w)}),
    "export": lambda w: Call(segcal.export, lambda w: {"calibrator": w.fitted, "path": w.folder / "c.pt2"}),
    "fit": lambda w: Call(segcal.fit, lambda w: {"name_or_calibrator": "ts", "cases": w.logits, "labels": w.labels}),
    "fit_margins": lambda w: Call(
        segcal.fit_margins, lambda w: {"masks": _masks(w, w.folder / "labels"), "level": 0.5}
    ),
    "learn_objects": lambda w: Call(segcal.learn_objects, lambda w: {"fitted": w.fitted, "cases": w.cases}),
    "learn_trust": lambda w: Call(segcal.learn_trust, lambda w: {"fitted": w.fitted, "cases": w.cases}),
    "load": lambda w: Call(segcal.load, lambda w: {"folder": w.folder / "fitted"}),
    "make_calibrator": lambda w: Call(segcal.make_calibrator, lambda w: {"name": "ts", "num_classes": 3}),
    "make_loss": lambda w: Call(segcal.make_loss, lambda w: {"name": "ce"}),
    "merge": lambda w: Call(
        lambda parts, cases, **given: segcal.merge(parts, cases, **given),
        lambda w: {"parts": [w.folder / "part0"], "cases": w.cases},
    ),
    "monitor": lambda w: Call(segcal.monitor, lambda w: {"fitted": w.trusted, "cases": w.cases}),
    "objects": lambda w: Call(segcal.objects, lambda w: {"fitted": w.trusted, "cases": w.cases}),
    "open_cases": lambda w: Call(
        segcal.open_cases,
        lambda w: {"predictions": w.folder / "predictions", "labels": w.folder / "labels", "kind": "logits"},
    ),
    "pool": lambda w: Call(segcal.pool, lambda w: {"members": [torch.zeros(3, 4)] * 2, "how": "mean_probs"}),
    "report": lambda w: Call(
        segcal.report, lambda w: {"fitted": w.fitted, "cases": w.cases, "path": w.folder / "r.html", "replicates": 20}
    ),
    "save": lambda w: Call(segcal.save, lambda w: {"fitted": w.fitted, "folder": w.folder / "saved"}),
    "trust": lambda w: Call(segcal.trust, lambda w: {"fitted": w.trusted, "cases": w.cases}),
    "view": lambda w: Call(segcal.view, lambda w: {"fitted": w.fitted, "cases": w.cases, "folder": w.folder / "views"}),
}  # fmt: skip

METHODS: dict[str, Callable[[World], Call]] = {
    "calibrator": lambda w: Call(
        segcal.make_calibrator("conic", 3).forward, lambda w: {"logits": torch.from_numpy(w.logits)}
    ),
    "local calibrator": lambda w: Call(
        segcal.make_calibrator("lts", 3).forward, lambda w: {"logits": torch.from_numpy(w.logits)}
    ),
    "Cases.split": lambda w: Call(w.cases.split, lambda w: {"cal": 2}),
    "Cases.subset": lambda w: Call(w.cases.subset, lambda w: {"ids": w.cases.ids}),
    "Cases.read": lambda w: Call(w.cases.read, lambda w: {"case_id": w.cases.ids[0]}),
    "Cases.pooled": lambda w: Call(w.cases.pooled, lambda w: {"how": None}),
    "Margins.save": lambda w: Call(_margins(w).save, lambda w: {"path": w.folder / "m.json"}),
    "Margins.load": lambda w: Call(segcal.Margins.load, lambda w: {"path": _margins(w).save(w.folder / "m.json")}),
    "Evaluation.to_csv": lambda w: Call(w.evaluation.to_csv, lambda w: {"path": w.folder / "e.csv"}),
    "Evaluation.to_json": lambda w: Call(w.evaluation.to_json, lambda w: {"path": w.folder / "e.json"}),
    "Evaluation.to_summary": lambda w: Call(w.evaluation.to_summary, lambda w: {"path": w.folder / "s.json"}),
    "Evaluation.table": lambda w: Call(w.evaluation.table, lambda w: {}),
    "metrics.ece": lambda w: Call(metrics.ece, lambda w: {"logits": w.logits, "labels": w.labels}),
    "metrics.hd": lambda w: Call(metrics.hd, lambda w: {"logits": w.logits, "labels": w.labels}),
    "metrics.flip_rate": lambda w: Call(
        metrics.flip_rate, lambda w: {"logits": w.logits, "labels": w.labels, "reference": w.labels}
    ),
    "metrics.meter": lambda w: Call(lambda name, **g: metrics.meter(name, **g), lambda w: {"name": "ece"}),
    "metrics.Meter": lambda w: Call(metrics.Meter, lambda w: {"metrics": {"ece": segcal.METRICS["ece"]}}),
    "metrics.with_bins": lambda w: Call(segcal.METRICS["ece"].with_bins, lambda w: {"bins": 5}),
    **{f"loss {name}": (lambda w, name=name: Call(segcal.make_loss(name).forward, _tensors)) for name in losses.LOSSES},
    **{
        f"options of loss {name}": (lambda w, make=make: Call(make, lambda w: {}))
        for name, make in losses.LOSSES.items()
    },
    **{
        f"options of {name}": (lambda w, name=name: Call(_made(name), lambda w: {}))
        for name in ("selective", "conic", "lts", "isotonic", "histogram", "iop", "pts", "meta_cal")
    },
}


def _made(name):
    def make(**options):
        return segcal.make_calibrator(name, 3, **options)

    make.__signature__ = inspect.signature(segcal.CALIBRATORS[name])
    parameters = [p for p in make.__signature__.parameters.values() if p.name not in ("num_classes", "above")]
    make.__signature__ = make.__signature__.replace(parameters=parameters)
    return make


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("world")
    rng = np.random.default_rng(0)
    logits = 4 * rng.normal(size=(4, 3, 6, 5)).astype("float32")
    labels = (logits / 3 + rng.gumbel(size=logits.shape)).argmax(1)
    for part, arrays in (("predictions", logits), ("labels", labels)):
        (folder / part).mkdir()
        for number, array in enumerate(arrays):
            np.save(folder / part / f"case_{number}.npy", array)
    cases = segcal.open_cases(folder / "predictions", labels=folder / "labels", kind="logits")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fitted = segcal.fit("ts", cases)
        trusted = segcal.learn_objects(segcal.learn_trust(fitted, cases), cases)
    segcal.save(fitted, folder / "fitted")
    with segcal.Part(folder / "part0", [cases], 0, of=1) as part:
        evaluation = segcal.evaluate(part.take(cases), fitted, ["nll"], workers=part, replicates=20)
    return World(logits, labels, cases, fitted, trusted, evaluation, folder)


def parameters_of(function, world):
    """Return what can be passed by name; of what takes more, the declarations of cases as well."""
    found = inspect.signature(function).parameters.values()
    names = [one.name for one in found if one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)]
    if any(one.kind == one.VAR_KEYWORD and one.name == "declared" for one in found):
        names += ["kind", "pooling", "model", "ignore", "groups", "ids", "class_names", "regions", "masks", "spacing"]
    return dict.fromkeys(names)


# Where a function of the user's own is taken, these are functions that do not take what they are given.
FUNCTIONS = {"progress", "failed", "inferer", "model", "calibrator"}
NO_SUCH_FUNCTION = {"loss", "metric", "calibrator", "own class", "fitted"}


def outcome(function, arguments):
    """Return None if a call ends as it should, else what it ended with."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            function(**arguments)
    except SegcalError as error:
        return None if FORM.fullmatch(str(error)) else f"says {str(error)!r}"
    except Exception as error:
        if isinstance(error, OSError) and (error.filename or FORM.fullmatch(str(error))):
            return None
        return f"raises {type(error).__name__}: {str(error)[:150]}"
    return None


def test_every_public_function_is_called_here():
    assert {*CALLS} | NOT_CALLED == {*segcal.__all__}


@pytest.mark.parametrize("name", [*CALLS, *METHODS])
def test_nonsense_ends_with_a_result_or_one_sentence(name, world, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where relative names lead
    make = (CALLS | METHODS)[name]
    wrong = []
    for number, parameter in enumerate(parameters_of(make(world).function, world)):
        values = nonsense(world)
        for what in values.keys() - (NO_SUCH_FUNCTION if parameter in FUNCTIONS else set()):
            value = values[what]
            own = tmp_path / f"{number}-{len(wrong)}"
            for part in ("predictions", "labels", "fitted", "part0"):
                if not (own / part).exists():
                    own.mkdir(exist_ok=True)
                    (own / part).symlink_to(world.folder / part)
            here = world._replace(folder=own)
            call = make(here)
            found = outcome(call.function, call.valid(here) | {parameter: value})
            if found is not None:
                wrong.append(f"{parameter} = {what}: {found}")
    assert not wrong, f"{len(wrong)} calls of {name}:\n" + "\n".join(wrong)
