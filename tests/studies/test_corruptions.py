"""Corruptions: the checked numbers, a plain reference for each, and the choice by the digest of the name."""

import hashlib
import io
import json
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from segcal.errors import InputError
from segcal.studies.corruptions import CORRUPTIONS, SETTINGS, choose_corruption, corrupt, gaussian_kernel

SCRIPT = Path(__file__).parents[2] / "paper" / "corrupt.py"


@pytest.fixture
def picture():
    """A smooth picture with some grain; channels, height and width all differ."""
    rng = np.random.default_rng(3)
    ramp = np.linspace(0, 1, 17)[None, :, None] * np.linspace(0.2, 1, 23)[None, None, :]
    return np.clip(ramp * np.array([0.9, 0.5, 1.0])[:, None, None] + 0.05 * rng.normal(size=(3, 17, 23)), 0, 1)


def noisy(picture, sigma):
    digest = int.from_bytes(hashlib.sha256(b"7:some name.png").digest(), "big")
    return picture + sigma * np.random.default_rng(digest).standard_normal(picture.shape)


def blurred(picture, taps, sigma):
    """A sum over a mirrored neighbourhood."""
    reach = taps // 2
    weights = np.exp(-0.5 * (np.arange(-reach, reach + 1) / sigma) ** 2)
    weights = np.outer(weights, weights) / weights.sum() ** 2
    wide = np.pad(picture, ((0, 0), (reach, reach), (reach, reach)), mode="reflect")
    _, height, width = picture.shape
    return sum(weights[i, j] * wide[:, i : i + height, j : j + width] for i in range(taps) for j in range(taps))


def compressed(picture, quality):
    stream = io.BytesIO()
    Image.fromarray(np.rint(picture.transpose(1, 2, 0) * 255).astype(np.uint8)).save(stream, "JPEG", quality=quality)
    return np.asarray(Image.open(stream)).transpose(2, 0, 1) / 255


@pytest.mark.parametrize(
    ("kind", "strength", "expected"),
    [
        ("noise", "mild", lambda picture: noisy(picture, 0.03)),
        ("noise", "strong", lambda picture: noisy(picture, 0.10)),
        ("blur", "mild", lambda picture: blurred(picture, 5, 1.0)),
        ("blur", "strong", lambda picture: blurred(picture, 13, 3.0)),
        ("brightness", "mild", lambda picture: 1.2 * picture),
        ("brightness", "strong", lambda picture: 1.8 * picture),
        ("jpeg", "mild", lambda picture: compressed(picture, 60)),
        ("jpeg", "strong", lambda picture: compressed(picture, 10)),
        ("fog", "mild", lambda picture: 0.9 * picture + 0.1),
        ("fog", "strong", lambda picture: 0.5 * picture + 0.5),
    ],
)
def test_every_corruption_is_its_definition_clipped_and_in_steps(kind, strength, expected, picture):
    kept = picture.copy()
    found = corrupt(picture, "some name.png", strength, seed=7, kind=kind)
    assert np.abs(found - np.clip(expected(picture), 0, 1)).max() <= 0.5 / 255 + 1e-6
    assert found * 255 == pytest.approx(np.rint(found * 255), abs=1e-4)
    assert (picture == kept).all()
    grey = corrupt(picture[:1], "some name.png", strength, kind=kind)
    assert (grey.shape, grey.dtype) == ((1, 17, 23), np.float32)


def test_settings_and_kernels_are_the_published_ones_in_the_order_of_the_bank():
    assert list(CORRUPTIONS) == ["noise", "blur", "brightness", "jpeg", "fog"] == list(SETTINGS)
    values = [tuple(SETTINGS[kind].values()) for kind in SETTINGS]
    assert values == [(0.03, 0.10), (1.0, 3.0), (1.2, 1.8), (60, 10), (0.1, 0.5)]
    assert gaussian_kernel(5, 1.0) == pytest.approx([0.054489, 0.244201, 0.402620, 0.244201, 0.054489], abs=5e-7)
    half = [0.018544, 0.034167, 0.056332, 0.083109, 0.109719, 0.129618, 0.137023]
    assert gaussian_kernel(13, 3.0) == pytest.approx(half + half[-2::-1], abs=5e-7)


def test_the_choice_is_the_digest_modulo_five_and_does_not_know_the_strength(picture):
    names = [f"frame_{number:03d}.png" for number in range(200)]
    expected = [
        ("noise", "blur", "brightness", "jpeg", "fog")[int(hashlib.sha256(f"3:{name}".encode()).hexdigest(), 16) % 5]
        for name in names
    ]
    assert [choose_corruption(name, seed=3) for name in names] == expected
    assert min(expected.count(kind) for kind in CORRUPTIONS) > 20
    for name in names[:10]:
        kind = choose_corruption(name)
        for strength in ("mild", "strong"):
            assert (corrupt(picture, name, strength) == corrupt(picture, name, strength, kind=kind)).all()


def test_the_script_writes_pngs_of_the_same_stems_and_a_record_beside_them(tmp_path, picture, monkeypatch, capsys):
    source, target = tmp_path / "clean", tmp_path / "strong"
    source.mkdir()
    pixels = Image.fromarray(np.rint(picture.transpose(1, 2, 0) * 255).astype(np.uint8))
    pixels.save(source / "a.jpg")
    pixels.save(source / "b.png")
    Image.fromarray(np.rint(picture[0] * 255).astype(np.uint8)).save(source / "grey.png")
    monkeypatch.setattr(sys, "argv", ["corrupt.py", str(source), str(target), "--strength", "strong"])
    corrupt_folder = runpy.run_path(str(SCRIPT), run_name="__main__")["corrupt_folder"]
    assert "3 pictures" in capsys.readouterr().out
    assert sorted(path.name for path in target.iterdir()) == ["a.png", "b.png", "grey.png"]
    record = json.loads((tmp_path / "strong.json").read_text())
    assert record["pictures"] == {name: choose_corruption(name) for name in ("a.jpg", "b.png", "grey.png")}
    clean, written = (np.asarray(Image.open(each / "b.png")).transpose(2, 0, 1) / 255 for each in (source, target))
    assert written == pytest.approx(corrupt(clean, "b.png", "strong"), abs=1e-6)
    assert np.asarray(Image.open(target / "grey.png")).shape == (17, 23)
    with pytest.raises(InputError, match="holds no files, but a folder of pictures is needed"):
        corrupt_folder(tmp_path / "nowhere", tmp_path / "out", "mild")
    pixels.save(source / "a.png")
    with pytest.raises(InputError, match="two pictures named 'a', but copies are PNG files"):
        corrupt_folder(source, tmp_path / "out", "mild")
    (source / "a.jpg").write_text("no picture")
    (source / "a.png").unlink()
    with pytest.raises(InputError, match="is not readable as a picture"):
        corrupt_folder(source, tmp_path / "out", "mild")


@pytest.mark.parametrize(
    ("values", "strength", "kind", "match"),
    [
        (np.zeros((3, 4, 5)), "medium", None, "strength is 'medium', but it must be 'mild' or 'strong'"),
        (np.zeros((3, 4, 5)), "mild", "snow", r"no corruption is named 'snow'\. Choose one of: noise, blur"),
        (np.zeros((4, 5, 6, 7)), "mild", None, r"'x' has shape \(4, 5, 6, 7\), but \(channels, height, width\)"),
        (np.full((3, 4, 5), 255.0), "mild", None, r"values from 0 to 255, but values in \[0, 1\] are needed"),
        (np.full((3, 4, 5), np.nan), "mild", None, r"values in \[0, 1\] are needed"),
    ],
)
def test_what_is_no_picture_is_refused(values, strength, kind, match):
    with pytest.raises(InputError, match=match):
        corrupt(values, "x", strength, kind=kind)
