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
        "nan": float("nan"),
        "complex": 1j,
        "list": [],
        "list of None": [None],
        "tuple": (1, "x"),
        "dict": {},
        "dict by number": {1: 2},
        "set": {"x"},
        "object": object(),
        "class": SomeClass,
        "function": lambda *a, **b: None,
        "generator": (number for number in range(3)),
        "path to nothing": Path("nothing/here"),
        "objects": np.array([None, object()], dtype=object),
        "no array": np.float32(2),
        "nan array": np.full((2, 3, 4, 4), np.nan, "float32"),
        "complex tensor": torch.ones(2, 3, 4, 4, dtype=torch.complex64),
        "number tensor": torch.tensor(1.0),
        "no batch": torch.empty(0, 3, 4, 4),
        "no voxels": torch.empty(2, 3, 0, 4),
        "sparse tensor": torch.eye(3).to_sparse(),
        "meta tensor": torch.empty(2, 3, 4, 4, device="meta"),
        "context of nonsense": segcal.Context("x", 3, {}),
        "calibrator": segcal.make_calibrator("ts", 5),
        "fitted": world.fitted,
        "evaluation": world.evaluation,
        "metric": segcal.METRICS["ece"],
        "error": ValueError("x"),
        "device": torch.device("cuda", 99),
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


def _network():
    return torch.nn.Conv2d(2, 3, 1)


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

# By name: the callable, and valid arguments for it.
CALLS: dict[str, Callable[[World], tuple[Callable[..., Any], dict[str, Any]]]] = {
    "ArrayCases": lambda w: (segcal.ArrayCases, {"logits": list(w.logits[:1]), "labels": list(w.labels[:1])}),
    "FitConfig": lambda w: (segcal.FitConfig, {}),
    "MaskCases": lambda w: (segcal.MaskCases, {"predictions": w.folder / "labels", "labels": w.folder / "labels"}),
    "Part": lambda w: (segcal.Part, {"folder": w.folder / "part", "collections": [w.cases]}),
    "ReadOptions": lambda w: (
        lambda **given: segcal.open_cases(w.folder / "predictions", options=segcal.ReadOptions(**given)),
        {"kind": "logits"},
    ),
    "adapt": lambda w: (segcal.adapt, {"fitted": w.trusted, "cases": w.cases}),
    "apply": lambda w: (segcal.apply, {"fitted": w.fitted, "cases": w.cases, "folder": w.folder / "out"}),
    "apply_margins": lambda w: (
        segcal.apply_margins,
        {"margins": _margins(w), "masks": _masks(w, None), "folder": w.folder / "grown"},
    ),
    "as_cases": lambda w: (segcal.as_cases, {"data": w.logits, "labels": w.labels}),
    "attach": lambda w: (segcal.attach, {"model": _network(), "calibrator": w.fitted}),
    "audit": lambda w: (segcal.audit, {"calibrator": w.fitted, "cases": w.cases}),
    "card": lambda w: (segcal.card, {"fitted": w.fitted, "results": w.evaluation, "path": w.folder / "card.md"}),
    "check": lambda w: (segcal.check, {"cases": w.logits, "labels": w.labels}),
    "choose": lambda w: (segcal.choose, {"cases": w.logits, "labels": w.labels, "names": ["ts"]}),
    "convert": lambda w: (segcal.convert, {"cases": w.cases, "folder": w.folder / "store"}),
    "decide": lambda w: (segcal.decide, {"fitted": w.trusted, "cases": w.cases, "rule": "dice"}),
    "evaluate": lambda w: (
        segcal.evaluate,
        {"cases": w.cases, "calibrator": w.fitted, "replicates": 20, "metrics": ["nll", "flip_rate"]},
    ),
    "export": lambda w: (segcal.export, {"calibrator": w.fitted, "path": w.folder / "c.pt2"}),
    "fit": lambda w: (segcal.fit, {"name_or_calibrator": "ts", "cases": w.logits, "labels": w.labels}),
    "fit_margins": lambda w: (segcal.fit_margins, {"masks": _masks(w, w.folder / "labels"), "level": 0.5}),
    "learn_objects": lambda w: (segcal.learn_objects, {"fitted": w.fitted, "cases": w.cases}),
    "learn_trust": lambda w: (segcal.learn_trust, {"fitted": w.fitted, "cases": w.cases}),
    "load": lambda w: (segcal.load, {"folder": w.folder / "fitted"}),
    "make_calibrator": lambda w: (segcal.make_calibrator, {"name": "ts", "num_classes": 3}),
    "make_loss": lambda w: (segcal.make_loss, {"name": "ce"}),
    "merge": lambda w: (
        lambda parts, cases, **given: segcal.merge(parts, cases, **given),
        {"parts": [w.folder / "part0"], "cases": w.cases},
    ),
    "monitor": lambda w: (segcal.monitor, {"fitted": w.trusted, "cases": w.cases}),
    "objects": lambda w: (segcal.objects, {"fitted": w.trusted, "cases": w.cases}),
    "open_cases": lambda w: (
        segcal.open_cases,
        {"predictions": w.folder / "predictions", "labels": w.folder / "labels", "kind": "logits"},
    ),
    "pool": lambda w: (segcal.pool, {"members": [torch.zeros(3, 4)] * 2, "how": "mean_probs"}),
    "report": lambda w: (
        segcal.report,
        {"fitted": w.fitted, "cases": w.cases, "path": w.folder / "r.html", "replicates": 20},
    ),
    "save": lambda w: (segcal.save, {"fitted": w.fitted, "folder": w.folder / "saved"}),
    "trust": lambda w: (segcal.trust, {"fitted": w.trusted, "cases": w.cases}),
    "view": lambda w: (segcal.view, {"fitted": w.fitted, "cases": w.cases, "folder": w.folder / "views"}),
}

METHODS: dict[str, Callable[[World], tuple[Callable[..., Any], dict[str, Any]]]] = {
    "calibrator": lambda w: (segcal.make_calibrator("conic", 3).forward, {"logits": torch.from_numpy(w.logits)}),
    "local calibrator": lambda w: (segcal.make_calibrator("lts", 3).forward, {"logits": torch.from_numpy(w.logits)}),
    "Cases.split": lambda w: (w.cases.split, {"cal": 2}),
    "Cases.subset": lambda w: (w.cases.subset, {"ids": w.cases.ids}),
    "Cases.read": lambda w: (w.cases.read, {"case_id": w.cases.ids[0]}),
    "Cases.pooled": lambda w: (w.cases.pooled, {"how": None}),
    "Margins.save": lambda w: (_margins(w).save, {"path": w.folder / "m.json"}),
    "Margins.load": lambda w: (segcal.Margins.load, {"path": _margins(w).save(w.folder / "m.json")}),
    "Evaluation.to_csv": lambda w: (w.evaluation.to_csv, {"path": w.folder / "e.csv"}),
    "Evaluation.to_json": lambda w: (w.evaluation.to_json, {"path": w.folder / "e.json"}),
    "Evaluation.to_summary": lambda w: (w.evaluation.to_summary, {"path": w.folder / "s.json"}),
    "Evaluation.table": lambda w: (w.evaluation.table, {}),
    "metrics.ece": lambda w: (metrics.ece, {"logits": w.logits, "labels": w.labels}),
    "metrics.hd": lambda w: (metrics.hd, {"logits": w.logits, "labels": w.labels}),
    "metrics.flip_rate": lambda w: (metrics.flip_rate, {"logits": w.logits, "labels": w.labels, "reference": w.labels}),
    "metrics.meter": lambda w: (lambda name, **g: metrics.meter(name, **g), {"name": "ece"}),
    "metrics.Meter": lambda w: (metrics.Meter, {"metrics": {"ece": segcal.METRICS["ece"]}}),
    "metrics.with_bins": lambda w: (segcal.METRICS["ece"].with_bins, {"bins": 5}),
    "loss": lambda w: (  # all of them inherit it
        segcal.make_loss("ce").forward,
        {"logits": torch.from_numpy(w.logits), "labels": torch.from_numpy(w.labels)},
    ),
    **{f"options of loss {name}": (lambda w, make=make: (make, {})) for name, make in losses.LOSSES.items()},
    **{
        f"options of {name}": (lambda w, name=name: (_made(name), {}))
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


def parameters_of(function):
    """Return what can be passed by name; of what takes more, the declarations of cases as well."""
    found = inspect.signature(function).parameters.values()
    names = [one.name for one in found if one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)]
    if any(one.kind == one.VAR_KEYWORD and one.name == "declared" for one in found):
        names += ["kind", "pooling", "model", "ignore", "groups", "ids", "class_names", "regions", "masks", "spacing"]
    return dict.fromkeys(names)


# Where a function of the user's own is taken, these are functions that do not take what they are given.
FUNCTIONS = {"progress", "report", "failed", "inferer", "model", "calibrator"}
NO_SUCH_FUNCTION = {"metric", "calibrator", "fitted"}


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
    for number, parameter in enumerate(parameters_of(make(world)[0])):
        values = nonsense(world)
        for what in values.keys() - (NO_SUCH_FUNCTION if parameter in FUNCTIONS else set()):
            value = values[what]
            own = tmp_path / f"{number}-{len(wrong)}"
            for part in ("predictions", "labels", "fitted", "part0"):
                if not (own / part).exists():
                    own.mkdir(exist_ok=True)
                    (own / part).symlink_to(world.folder / part)
            function, valid = make(world._replace(folder=own))
            found = outcome(function, valid | {parameter: value})
            if found is not None:
                wrong.append(f"{parameter} = {what}: {found}")
    assert not wrong, f"{len(wrong)} calls of {name}:\n" + "\n".join(wrong)
