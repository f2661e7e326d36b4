"""``segcal adapt``: a calibrator is written, or a reason is given; never both."""

import numpy as np
import pytest

import segcal
from segcal.cli import main

HOME, ELSEWHERE = np.array([0.7, 0.3]), np.array([0.3, 0.7])


def place(seed, cases, prior, scale=1.0):
    rng = np.random.default_rng(seed)
    labels = np.stack([rng.choice(2, size=(9, 40), p=rng.dirichlet(80 * prior)) for _ in range(cases)])
    shown = np.stack([labels == number for number in range(2)], 1)
    logits = 2 * (rng.normal(size=shown.shape) + 2 * shown) + np.log(HOME)[:, None, None]
    return (scale * logits).astype(np.float32), labels


@pytest.fixture(scope="module")
def known():
    logits, labels = place(0, 24, HOME)
    return segcal.learn_trust(segcal.fit("ts", logits, labels), logits, labels)


@pytest.mark.parametrize(("prior", "scale", "code"), [(ELSEWHERE, 1.0, 0), (HOME, 1.0, 0), (HOME, 0.4, 4)])
def test_the_command_writes_a_calibrator_or_says_why_not(known, tmp_path, capsys, prior, scale, code):
    segcal.save(known, tmp_path / "calibrator")
    (tmp_path / "new").mkdir()
    for number, logits in enumerate(place(7, 8, prior, scale=scale)[0]):
        np.save(tmp_path / "new" / f"case{number}.npy", logits)
    words = ["adapt", str(tmp_path / "calibrator"), str(tmp_path / "new"), "-o", str(tmp_path / "out")]
    with pytest.raises(SystemExit) as ended:
        main([*words, "--kind", "logits"])
    assert ended.value.code == code
    written = prior is ELSEWHERE
    assert (tmp_path / "out" / "calibrator.json").exists() == written
    assert ("written to" in capsys.readouterr().out) == written
