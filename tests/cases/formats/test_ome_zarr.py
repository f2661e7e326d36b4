"""OME-Zarr 0.4 and 0.5: what other programs wrote is read, and what is written they read."""

import json

import numpy as np
import pytest

import segcal
from segcal.cases import CaseError, open_cases
from segcal.errors import InputError
from segcal.evaluation import slabs

zarr = pytest.importorskip("zarr")
AXES = {"t": "time", "c": "channel"}


def make(path, values, axes="cyx", version="0.5", levels=1, unit="micrometer", **options):
    """Write an image as the specification says, with levels that a program made by means."""
    named = [{"name": n, "type": AXES.get(n, "space")} | ({} if n in AXES else {"unit": unit}) for n in axes]
    steps = [[1.0 if n in AXES else (0.5 if n == "y" else 0.25) * 2**k for n in axes] for k in range(levels)]
    datasets = [
        {"path": str(k), "coordinateTransformations": [{"type": "scale", "scale": each}]}
        for k, each in enumerate(steps)
    ]
    image = {"axes": named, "datasets": datasets, "name": "scores", "type": "mean", "metadata": {"method": "mean"}}
    omero = {"channels": [{"color": "FF0000", "label": "a", "window": {"start": 0, "end": 1, "min": 0, "max": 1}}] * 3}
    third = version == "0.5"
    group = zarr.create_group(str(path), zarr_format=3 if third else 2)
    if third:
        group.attrs["ome"] = {"version": "0.5", "multiscales": [image], "omero": omero}
    else:
        group.attrs["multiscales"], group.attrs["omero"] = [image | {"version": "0.4"}], omero
    options = {"chunks": tuple(size if n in "tc" else 16 for n, size in zip(axes, values.shape, strict=True))} | options
    keys = {"name": "default" if third else "v2", "separator": "/"}
    for k in range(levels):
        small = values[tuple(slice(None, None, 1 if n in "tcz" else 2**k) for n in axes)]
        named = {"dimension_names": list(axes)} if third else {}
        array = group.create_array(
            str(k), shape=small.shape, dtype=values.dtype, chunk_key_encoding=keys, **named, **options
        )
        array[...] = small
    group.create_group("tables").attrs["kept"] = [1]


def stored(path, level="0"):
    return zarr.open_array(str(path / level), mode="r")[...]


def scores(rng, space=(45, 70)):
    from scipy.ndimage import gaussian_filter

    return np.stack([9 * gaussian_filter(rng.normal(size=space), 2) for _ in range(3)]).astype(np.float32)


@pytest.fixture(scope="module")
def fitted():
    """Return a function that fits to scores of so many classes, with labels that belong to them, once for each."""
    rng = np.random.default_rng(7)
    values = scores(rng)
    labels = {n: (values[:n] + rng.gumbel(size=values[:n].shape)).argmax(0) for n in (2, 3)}
    found = {n: segcal.fit("ts", values[None, :n], truth[None]) for n, truth in labels.items()}
    return found.get


@pytest.mark.parametrize(
    ("version", "axes"), [("0.4", "cyx"), ("0.4", "tczyx"), ("0.5", "yxc"), ("0.5", "tcyx"), ("0.5", "czyx")]
)
def test_scores_are_read_and_written_in_any_order_of_axes(version, axes, fitted, tmp_path, rng, monkeypatch):
    values = scores(rng)
    ordered = np.moveaxis(values, 0, -1) if axes == "yxc" else values
    for place, name in enumerate(axes):
        ordered = np.expand_dims(ordered, place) if name in "tz" else ordered
    make(tmp_path / "in" / "a.ome.zarr", ordered, axes, version, levels=3)
    cases = open_cases(tmp_path / "in", kind="logits")
    case = cases.read("a")
    assert (cases.members[0].name, cases.ids) == ("ome-zarr", ("a",))
    assert np.array_equal(case.logits.reshape(values.shape), values)
    assert case.spacing == pytest.approx(((0.25e-3,) if "z" in axes else ()) + (0.5e-3, 0.25e-3))
    monkeypatch.setattr(slabs, "WINDOW_VALUES", 3 * 20 * 40)
    segcal.apply(fitted(3), cases, tmp_path / "out", confidence_map=True)
    monkeypatch.undo()
    segcal.apply(fitted(3), cases, tmp_path / "one")
    out = tmp_path / "out" / "a.ome.zarr"
    found = stored(out)
    assert found.shape == ordered.shape
    assert np.array_equal(found, stored(tmp_path / "one" / "a.ome.zarr"))
    axis = axes.index("c")
    np.testing.assert_allclose(np.exp(found).sum(axis), 1, atol=1e-5)
    assert np.array_equal(found.argmax(axis), ordered.argmax(axis))
    for level, step in (("1", 2), ("2", 4)):
        picked = found[tuple(slice(None, None, step if n in "yx" else 1) for n in axes)]
        assert np.array_equal(stored(out, level), picked)
    shown = stored(tmp_path / "out" / "confidence" / "a.ome.zarr")
    assert shown.shape[axis] == 1
    np.testing.assert_allclose(shown, np.exp(found.max(axis, keepdims=True)), rtol=1e-5)


@pytest.mark.parametrize("version", ["0.4", "0.5"])
def test_metadata_is_kept_as_far_as_it_is_still_true(version, fitted, tmp_path, rng):
    make(tmp_path / "in" / "a.ome.zarr", scores(rng), version=version, levels=2)
    segcal.apply(fitted(3), open_cases(tmp_path / "in", kind="logits"), tmp_path / "out", confidence_map=True)
    one, other, shown = (
        dict(zarr.open_group(str(tmp_path / each / "a.ome.zarr"), mode="r").attrs)
        for each in ("in", "out", "out/confidence")
    )
    one, other, shown = (each["ome"] if version == "0.5" else each for each in (one, other, shown))
    one["multiscales"][0] |= {"type": "nearest", "metadata": {}}
    assert one == other
    assert shown == {name: value for name, value in one.items() if name != "omero"}
    beside = [tmp_path / each / "a.ome.zarr" / "tables" for each in ("in", "out")]
    assert [dict(zarr.open_group(str(each), mode="r").attrs) for each in beside] == [{"kept": [1]}] * 2
    arrays = [zarr.open_array(str(tmp_path / each / "a.ome.zarr" / "1"), mode="r") for each in ("in", "out")]
    for name in ("shape", "chunks", "dtype", "compressors", "metadata"):
        assert getattr(arrays[0], name) == getattr(arrays[1], name), name


@pytest.mark.parametrize("version", ["0.4", "0.5"])
def test_a_reader_of_ome_zarr_reads_what_is_written(version, fitted, tmp_path, rng):
    pytest.importorskip("ome_zarr")
    models = pytest.importorskip("ome_zarr_models")
    from ome_zarr.io import parse_url
    from ome_zarr.reader import Reader

    make(tmp_path / "in" / "a.ome.zarr", scores(rng), version=version, levels=2)
    segcal.apply(fitted(3), open_cases(tmp_path / "in", kind="logits"), tmp_path / "out", confidence_map=True)
    for place in (tmp_path / "out" / "a.ome.zarr", tmp_path / "out" / "confidence" / "a.ome.zarr"):
        node = next(iter(Reader(parse_url(str(place)))()))
        assert [level.shape[1:] for level in node.data] == [(45, 70), (23, 35)]
        assert np.array_equal(node.data[0].compute(), stored(place))
        assert [axis["name"] for axis in node.metadata["axes"]] == ["c", "y", "x"]
        models.open_ome_zarr(zarr.open_group(str(place), mode="r"))  # against the schema


def test_an_image_without_classes_is_one_probability(tmp_path, rng, fitted):
    probs = rng.random((20, 33)).astype(np.float32)
    make(tmp_path / "in" / "a.zarr", probs, "yx")
    cases = open_cases(tmp_path / "in", kind="sigmoid")
    np.testing.assert_allclose(cases.read("a").logits.softmax(0)[1], probs, atol=1e-6)
    segcal.apply(fitted(2), cases, tmp_path / "out")
    odds = np.log(probs / (1 - probs)) / fitted(2).calibrator.temperature
    np.testing.assert_allclose(stored(tmp_path / "out" / "a.zarr"), 1 / (1 + np.exp(-odds)), atol=1e-5)


@pytest.mark.parametrize("version", ["0.4", "0.5"])
def test_shards_and_labels(version, tmp_path, rng, fitted):
    values = scores(rng, (64, 96))
    sharded = {"chunks": (3, 16, 16), "shards": (3, 32, 32)} if version == "0.5" else {}
    make(tmp_path / "in" / "a.ome.zarr", values, version=version, **sharded)
    make(tmp_path / "labels" / "a.ome.zarr", values.argmax(0).astype(np.uint16), "yx", version)
    cases = open_cases(tmp_path / "in", tmp_path / "labels", kind="logits")
    assert cases.members[0].tile("a") == ((32, 32) if sharded else (16, 16))
    assert np.array_equal(cases.read("a").labels, values.argmax(0))
    segcal.apply(fitted(3), cases, tmp_path / "out")
    assert np.array_equal(stored(tmp_path / "out" / "a.ome.zarr").argmax(0), values.argmax(0))


@pytest.mark.parametrize("version", ["0.4", "0.5"])
def test_metadata_that_cannot_be_used_is_refused(version, tmp_path, rng):
    for name in "ab":
        make(tmp_path / f"{name}.ome.zarr", scores(rng), version=version)
    cases = open_cases(tmp_path, kind="logits")
    path = tmp_path / "a.ome.zarr"
    file = path / (".zattrs" if (path / ".zattrs").is_file() else "zarr.json")
    good = file.read_text()
    for work, match in (
        (lambda image: image["datasets"][0].update(path="../b.ome.zarr/0"), "no dataset inside of itself"),
        (lambda image: image["datasets"][0].update(path="/etc"), "no dataset inside of itself"),
        (lambda image: image["datasets"].clear(), "no dataset inside of itself"),
        (lambda image: image["axes"].reverse(), "with the axes x, y, c, but 0.4 or 0.5 with y, x"),
        (lambda image: image.update(version="0.6"), "is OME-Zarr 0.6 with"),
        (lambda image: image.clear(), "cannot be read"),
        (lambda image: image.update(axes=[{"name": "y"}, {"name": "x"}]), "but one size per axis is needed"),
    ):
        content = json.loads(good)
        about = content["attributes"]["ome"] if file.name == "zarr.json" else content
        work(about["multiscales"][0])
        file.write_text(json.dumps(content))
        with pytest.raises(CaseError, match=match):
            cases.read("a")
    cases.read("b")


def test_codecs_of_the_second_format_are_checked_too(tmp_path, rng):
    make(tmp_path / "a.ome.zarr", scores(rng), version="0.4")
    cases = open_cases(tmp_path, kind="logits")
    file = tmp_path / "a.ome.zarr" / "0" / ".zarray"
    content = json.loads(file.read_text())
    file.write_text(json.dumps(content | {"filters": [{"id": "pickle"}]}))
    with pytest.raises(CaseError, match="uses the codec pickle, but only"):
        cases.read("a")
    file.write_text(json.dumps(content | {"dtype": "|O"}))
    with pytest.raises(CaseError, match="has dtype object, but numbers"):
        cases.read("a")


def test_a_lost_chunk_is_no_prediction(tmp_path, rng):
    make(tmp_path / "in" / "a.ome.zarr", scores(rng), version="0.4")
    (tmp_path / "in" / "a.ome.zarr" / "0" / "0" / "1" / "2").unlink()
    cases = open_cases(tmp_path / "in", kind="logits")
    with pytest.raises(CaseError, match="lacks the chunk 0/1/2 and perhaps others, which read as 0"):
        cases.read("a")


def test_labels_with_channels_are_refused(tmp_path, rng):
    make(tmp_path / "in" / "a.ome.zarr", scores(rng))
    make(tmp_path / "labels" / "a.ome.zarr", scores(rng))
    with pytest.raises(InputError, match="3 channels of float32, but one of class indices"):
        open_cases(tmp_path / "in", tmp_path / "labels", kind="logits").read("a")
