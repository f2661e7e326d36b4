"""Corruptions: the checked numbers, a plain reference for each, and the choice by the digest of the name."""

import hashlib
import io
import json
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from segcal.errors import InputError
from segcal.studies.corruptions import (
    CORRUPTIONS,
    SETTINGS,
    choose_corruption,
    corrupt,
    gaussian_kernel,
)

SCRIPT = Path(__file__).parents[2] / "paper" / "corrupt.py"


@pytest.fixture
def picture():
    """A smooth picture with some grain; channels, height and width all differ."""
    rng = np.random.default_rng(3)
    ramp = np.linspace(0, 1, 17)[None, :, None] * np.linspace(0.2, 1, 23)[None, None, :]
    return np.clip(ramp * np.array([0.9, 0.5, 1.0])[:, None, None] + 0.05 * rng.normal(size=(3, 17, 23)), 0, 1)


def in_steps(values):
    return np.rint(np.clip(values, 0, 1) * 255) / 255


def test_the_settings_are_those_of_table_6_in_the_order_of_the_bank():
    assert list(CORRUPTIONS) == ["noise", "blur", "brightness", "jpeg", "fog"] == list(SETTINGS)
    values = [tuple(SETTINGS[kind].values()) for kind in SETTINGS]
    assert values == [(0.03, 0.10), (1.0, 3.0), (1.2, 1.8), (60, 10), (0.1, 0.5)]


def test_the_kernels_have_the_published_taps():
    assert gaussian_kernel(5, 1.0) == pytest.approx([0.054489, 0.244201, 0.402620, 0.244201, 0.054489], abs=5e-7)
    half = [0.018544, 0.034167, 0.056332, 0.083109, 0.109719, 0.129618, 0.137023]
    assert gaussian_kernel(13, 3.0) == pytest.approx(half + half[-2::-1], abs=5e-7)


def test_fog_mixes_with_white():
    flat = np.full((3, 4, 5), 0.2)
    assert corrupt(flat, "x", "strong", kind="fog") == pytest.approx(0.6, abs=1e-7)
    assert corrupt(flat, "x", "mild", kind="fog") == pytest.approx(round(0.28 * 255) / 255, abs=1e-7)


@pytest.mark.parametrize(("strength", "factor"), [("mild", 1.2), ("strong", 1.8)])
def test_brightness_is_a_factor_and_is_clipped(picture, strength, factor):
    found = corrupt(picture, "x", strength, kind="brightness")
    assert found == pytest.approx(in_steps(factor * picture), abs=1e-6)
    assert found.max() == 1


@pytest.mark.parametrize(("strength", "taps", "sigma"), [("mild", 5, 1.0), ("strong", 13, 3.0)])
def test_blur_is_a_sum_over_a_mirrored_neighbourhood(picture, strength, taps, sigma):
    reach = taps // 2
    weights = np.exp(-0.5 * (np.arange(-reach, reach + 1) / sigma) ** 2)
    weights = np.outer(weights, weights) / weights.sum() ** 2
    wide = np.pad(picture, ((0, 0), (reach, reach), (reach, reach)), mode="reflect")
    expected = np.zeros_like(picture)
    for i in range(taps):
        for j in range(taps):
            expected += weights[i, j] * wide[:, i : i + picture.shape[1], j : j + picture.shape[2]]
    found = corrupt(picture, "x", strength, kind="blur")
    assert np.abs(found - expected).max() <= 0.5 / 255 + 1e-6


@pytest.mark.parametrize(("strength", "sigma"), [("mild", 0.03), ("strong", 0.10)])
def test_noise_is_seeded_by_the_digest_of_seed_and_name(picture, strength, sigma):
    digest = int.from_bytes(hashlib.sha256(b"7:some name.png").digest(), "big")
    drawn = np.random.default_rng(digest).standard_normal(picture.shape)
    found = corrupt(picture, "some name.png", strength, seed=7, kind="noise")
    assert found == pytest.approx(in_steps(picture + sigma * drawn), abs=1e-6)
    assert (found != corrupt(picture, "another name.png", strength, seed=7, kind="noise")).any()


@pytest.mark.parametrize(("strength", "quality"), [("mild", 60), ("strong", 10)])
def test_jpeg_is_what_the_encoder_makes_of_it_at_that_quality(picture, strength, quality):
    stream = io.BytesIO()
    pixels = np.rint(picture.transpose(1, 2, 0) * 255).astype(np.uint8)
    Image.fromarray(pixels).save(stream, "JPEG", quality=quality)
    expected = np.asarray(Image.open(stream)).transpose(2, 0, 1) / 255
    assert corrupt(picture, "x", strength, kind="jpeg") == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("kind", list(CORRUPTIONS))
def test_every_corruption_takes_one_channel_and_keeps_the_shape_and_the_picture(picture, kind):
    kept = picture.copy()
    found = corrupt(picture[:1], "x", "strong", kind=kind)
    assert found.shape == (1, 17, 23)
    assert found.dtype == np.float32
    assert found * 255 == pytest.approx(np.rint(found * 255), abs=1e-4)
    assert (picture == kept).all()


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


def test_the_script_writes_pngs_of_the_same_stems_and_a_record_beside_them(tmp_path, picture):
    source = tmp_path / "clean"
    source.mkdir()
    for name in ("a.jpg", "b.png", "c.png"):
        Image.fromarray(np.rint(picture.transpose(1, 2, 0) * 255).astype(np.uint8)).save(source / name)
    Image.fromarray(np.rint(picture[0] * 255).astype(np.uint8)).save(source / "grey.png")
    target = tmp_path / "strong"
    command = [sys.executable, str(SCRIPT), str(source), str(target), "--strength", "strong"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert "4 pictures" in done.stdout
    assert sorted(path.name for path in target.iterdir()) == ["a.png", "b.png", "c.png", "grey.png"]
    record = json.loads((tmp_path / "strong.json").read_text())
    assert record["pictures"] == {name: choose_corruption(name) for name in ("a.jpg", "b.png", "c.png", "grey.png")}
    clean = np.asarray(Image.open(source / "b.png")).transpose(2, 0, 1) / 255
    written = np.asarray(Image.open(target / "b.png")).transpose(2, 0, 1) / 255
    assert written == pytest.approx(corrupt(clean, "b.png", "strong"), abs=1e-6)
    assert np.asarray(Image.open(target / "grey.png")).shape == (17, 23)


def test_a_folder_that_cannot_be_copied_is_refused(tmp_path, picture):
    corrupt_folder = runpy.run_path(str(SCRIPT))["corrupt_folder"]
    with pytest.raises(InputError, match="holds no files, but a folder of pictures is needed"):
        corrupt_folder(tmp_path / "nowhere", tmp_path / "out", "mild")
    pixels = Image.fromarray(np.rint(picture.transpose(1, 2, 0) * 255).astype(np.uint8))
    pixels.save(tmp_path / "a.png")
    pixels.save(tmp_path / "a.jpg")
    with pytest.raises(InputError, match="two pictures named 'a', but copies are PNG files"):
        corrupt_folder(tmp_path, tmp_path / "out", "mild")
    (tmp_path / "a.jpg").write_text("no picture")
    (tmp_path / "a.png").unlink()
    with pytest.raises(InputError, match="is not readable as a picture"):
        corrupt_folder(tmp_path, tmp_path / "out", "mild")


def test_what_is_no_picture_is_refused(picture):
    with pytest.raises(InputError, match="strength is 'medium', but it must be 'mild' or 'strong'"):
        corrupt(picture, "x", "medium")
    with pytest.raises(InputError, match=r"no corruption is named 'snow'\. Choose one of: noise, blur"):
        corrupt(picture, "x", "mild", kind="snow")
    with pytest.raises(InputError, match=r"'x' has shape \(4, 5, 6, 7\), but \(channels, height, width\)"):
        corrupt(np.zeros((4, 5, 6, 7)), "x", "mild")
    with pytest.raises(InputError, match=r"values from 0 to 255, but values in \[0, 1\] are needed"):
        corrupt(picture / picture.max() * 255, "x", "mild")
    with pytest.raises(InputError, match=r"values in \[0, 1\] are needed"):
        corrupt(np.full((3, 4, 5), np.nan), "x", "mild")
