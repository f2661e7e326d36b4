"""Trials of public functions: one argument of a call that works is of a wrong type or value."""

import inspect
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.campaign.kinds_files import Trial
from benchmarks.campaign.sandbox import Box
from benchmarks.campaign.watch import Step

# Calls that work, as text: they are made in the process of the trial, whose folder is that of the box.
CALLS: dict[str, dict[str, str]] = {
    "open_cases": {"predictions": "'q'", "labels": "'y'", "kind": "'logits'"},
    "as_cases": {"data": "logits", "labels": "labels"},
    "ArrayCases": {"logits": "logits", "labels": "labels"},
    "check": {"cases": "cases"},
    "fit": {"name_or_calibrator": "'ts'", "cases": "cases"},
    "choose": {"cases": "cases", "names": "['ts']"},
    "evaluate": {"cases": "cases", "calibrator": "fitted", "metrics": "['nll']", "replicates": "10"},
    "audit": {"calibrator": "fitted", "cases": "cases"},
    "apply": {"fitted": "fitted", "cases": "cases", "folder": "'new'"},
    "convert": {"cases": "cases", "folder": "'new'"},
    "view": {"fitted": "fitted", "cases": "cases", "folder": "'new'"},
    "trust": {"fitted": "fitted", "cases": "cases", "level": "0.5"},
    "learn_trust": {"fitted": "fitted", "cases": "cases"},
    "monitor": {"fitted": "fitted", "cases": "cases", "state": "'new.json'"},
    "report": {"fitted": "fitted", "cases": "cases", "path": "'new.html'"},
    "card": {"fitted": "fitted", "results": "'cases.csv'", "path": "'new.md'"},
    "merge": {"parts": "['check0', 'check1']"},
    "save": {"fitted": "fitted", "folder": "'new'"},
    "load": {"folder": "'cal'"},
    "pool": {"members": "[torch.zeros(1, 3, 4)] * 2", "how": "'mean_logits'"},
    "make_calibrator": {"name": "'ts'", "num_classes": "3"},
    "make_loss": {"name": "'focal'"},
    "attach": {"model": "torch.nn.Identity()", "calibrator": "fitted"},
    "FitConfig": {},
    "ReadOptions": {},
    "Case": {"id": "'a'", "logits": "torch.zeros(3, 4)"},
    "Context": {},
    "Part": {"folder": "'new'", "collections": "[cases]"},
}
BAD = (
    "None", "True", "3", "-1", "0", "2.5", "float('nan')", "float('inf')", "10**30", "''", "'x'", "'\\x00'",
    "'a' * 10000", "b'x'", "[]", "[None]", "[[]]", "{}", "{'a': 1}", "{1: 2}", "()", "object()", "len",
    "Path('nowhere')", "Path('notes.txt')", "np.zeros(3)", "np.array(['a'])", "np.array(None)", "torch.zeros(2)",
    "torch.zeros(0)", "torch.zeros(2, dtype=torch.complex64)", "'file:///etc'", "'http://planted.invalid'",
    "range(3)", "iter([1])", "set()", "1j", "cases", "fitted", "type('x', (), {})", "ValueError('x')",
    "np.float32('nan')", "Path", "...", "slice(3)", "'q'", "['q', 'q']", "[logits]", "torch.nn.Identity()", "print",
)  # fmt: skip
CALLABLE = ("len", "Path", "print", "type('x', (), {})", "torch.nn.Identity()")


def calls(rng: random.Random, box: Box) -> Trial:
    """Call a public function with one argument that is wrong."""
    name = rng.choice(list(CALLS))
    bad, value = rng.choice(_parameters(name)), rng.choice(BAD)
    if bad in ("progress", "failed") and value in CALLABLE:
        value = "3"  # what a function of the user's own raises is the user's
    arguments = CALLS[name] | {bad: value}
    places = ["new", "new.json", "new.html", "new.md"] + [each for each in ("x", "nowhere") if each in value]
    yield Step(Call(name, arguments), [box / each for each in places])


def _parameters(name: str) -> list[str]:
    import segcal

    found = inspect.signature(getattr(segcal, name)).parameters.values()
    own = [each.name for each in found if each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)]
    return own + (["device", "workers"] if name == "report" else [])


class Call:
    """A call, made of texts in the process that runs it."""

    def __init__(self, name: str, arguments: dict[str, str]) -> None:
        self._name, self._arguments = name, arguments
        self.words = f"segcal.{name}({', '.join(f'{key}={value}' for key, value in arguments.items())})"

    def __call__(self) -> Any:
        """Make the call."""
        import numpy as np
        import torch

        import segcal

        cases = segcal.open_cases("q", labels="y", kind="logits")
        known: dict[str, Any] = {"np": np, "torch": torch, "Path": Path, "cases": cases, "fitted": segcal.load("cal")}
        known |= {
            "logits": [np.load(f"q/c{n}.npy") for n in range(3)],
            "labels": [np.load(f"y/c{n}.npy") for n in range(3)],
        }
        function: Callable[..., Any] = getattr(segcal, self._name)
        return function(**{key: eval(text, known) for key, text in self._arguments.items()})
