"""``segcal.export``: a calibrator, alone or behind its network, as one graph for other runtimes.

``.onnx`` holds ONNX operators, ``.pt2`` a program of :mod:`torch.export`; batch and space may have any size. Before the
graph is written it is run on spread-out voxels and on voxels with near ties, and compared with the library. Another
winner is an error; the largest difference is returned. Of a model of regions the masks (log p above that of 1/2) and
their nesting are compared instead.

Behind a network that is ONNX already, the two graphs are joined: inputs and outputs keep their names, and ``log_probs``
is added. Both then speak the newer of the two operator sets.
"""

import logging
import math
import os
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from segcal.arguments import typed
from segcal.atomic import remove_leftovers, written
from segcal.calibrators.base import Calibrator
from segcal.calibrators.per_region import PerRegion
from segcal.errors import InputError
from segcal.evaluation.audit import adversarial
from segcal.fitting.reference import calibrator_digest
from segcal.integrations.attach import Calibrating, attach, check_classes, folder_of, need, to_calibrator
from segcal.target import check_apart
from segcal.types import Context
from segcal.version import __version__

OUTPUT = "log_probs"
# The oldest operator set that torch's exporter writes.
OLDEST = 18
SIZES = (9, 8, 5)
TIE = 1e-5
SPACE = ("depth", "height", "width")
# As torch names axes of any size.
NUMBERED = re.compile(r"\bs\d+\b")


@dataclass(frozen=True)
class Exported:
    """A graph that was written and compared with the library.

    Attributes:
        path: the file.
        inputs: the names of its inputs.
        voxels: how many were compared.
        flips: voxels whose winner, or one of whose masks, is another one than the library's, by more than rounding
            where the calibrator promises nothing; 0, or nothing would have been written.
        largest_difference: of a log-probability.
    """

    path: Path
    inputs: tuple[str, ...]
    voxels: int
    flips: int
    largest_difference: float

    def __str__(self) -> str:
        found = f"{self.flips:,} of {self.voxels:,} voxels have another winner than the library's"
        return f"{self.path}: {found}, log-probabilities differ by at most {self.largest_difference:.2g}"


@typed
def export(
    calibrator: Calibrating,
    path: str | os.PathLike[str],
    model: nn.Module | str | os.PathLike[str] | None = None,
    example: Tensor | None = None,
    output: str | None = None,
    upsample: bool | None = None,
    axes: int = 2,
    dtype: torch.dtype = torch.float32,
    overwrite: bool = False,
) -> Exported:
    """Write a calibrator, or a network with its calibrator, as one graph.

    Args:
        calibrator: a calibrator, the result of :func:`segcal.fit`, or a folder of :func:`segcal.save`.
        path: the file to write, ``.onnx`` or ``.pt2``.
        model: a torch module, which needs an `example` of its input; or an ONNX file with a logits output.
        example: an input of the module, ``(batch, channels, *space)``.
        output: the name of the logits among the outputs of an ONNX file that has several.
        upsample: of a module whose logits are coarser than its input, see :func:`segcal.attach`.
        axes: of space, for a calibrator alone.
        dtype: of its input.
        overwrite: replace a file that is there.
    """
    target, own = folder_of(path), to_calibrator(calibrator).eval()
    if target.suffix not in (".onnx", ".pt2"):
        raise InputError(
            f"{target} has the ending {target.suffix!r}, but .onnx or .pt2 is written. Choose one of them."
        )
    check_apart(target, [Path(model)] if isinstance(model, str | os.PathLike) else [])
    if target.exists() and not overwrite:
        raise InputError(f"{target} exists, but it would be lost. Choose another name, or pass overwrite=True.")
    if target.suffix == ".onnx":
        need("onnxscript", "onnx")
        need("onnxruntime", "onnx")
    remove_leftovers(target.parent)
    with written(target) as beside:
        if model is None:
            given = _example(own, axes, dtype)
            _write(own, given, beside)
            _identify(beside, own)
            return _compared(target, beside, own, own, given)
        if isinstance(model, nn.Module):
            if example is None:
                raise InputError(
                    "example is missing, but a module is exported along one. Pass an input of the network."
                )
            whole = attach(model, own, upsample).eval()
            with torch.no_grad():
                whole(example)  # for the warning if these are no logits; writing is quiet
            if len(example) == 1:  # of which exporters take the size of the batch for a constant
                example = torch.cat([example, example])
            _write(whole, (example,), beside)
            _identify(beside, own)
            return _compared(target, beside, own, whole, (example,))
        return _join(target, beside, Path(model), own, output)


def _example(calibrator: Calibrator, axes: int, dtype: torch.dtype) -> tuple[Any, ...]:
    """Return logits that are easy to get wrong, as an image or volume, with the context that the calibrator sees."""
    voxels = adversarial(calibrator.num_classes)
    if isinstance(calibrator, PerRegion):  # masks change at 0: there, and as close to it as can be
        voxels = torch.cat([voxels, 0 * voxels, torch.finfo(dtype).tiny * voxels.sign()])
    shape = (4, *SIZES[:axes])
    rows = voxels[torch.linspace(0, len(voxels) - 1, torch.Size(shape).numel()).long()]
    logits = rows.reshape(*shape, -1).movedim(-1, 1).to(dtype).contiguous()
    channels = calibrator.options.get("image_channels", 0)
    return (logits, Context(image=logits.new_zeros(4, channels, *shape[1:]))) if channels else (logits,)


@contextmanager
def _quietly() -> Iterator[None]:
    """Without gradients, and without what exporters say of themselves and of packages that are not needed."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)


def _write(module: nn.Module, given: tuple[Any, ...], path: Path, opset: int | None = None) -> None:
    sizes: Any = {0: torch.export.Dim.DYNAMIC} | dict.fromkeys(range(2, given[0].ndim), torch.export.Dim.DYNAMIC)
    dynamic = tuple(Context(sizes, None) if isinstance(each, Context) else sizes for each in given)
    with _quietly():
        module(*given)  # raises an error message for a wrong input
        if path.suffix == ".pt2":
            exported = torch.export.export(module, given, dynamic_shapes=dynamic)
            exported.example_inputs = None  # an image of a patient stays where it is
            for node in exported.graph.nodes:
                node.meta.pop("stack_trace", None)  # paths of this machine
            torch.export.save(exported, path)
            return
        program = torch.onnx.export(
            module,
            given,
            dynamic_shapes=dynamic,
            dynamo=True,
            verbose=False,
            opset_version=opset,
            output_names=[OUTPUT],
        )
        assert program is not None
        program.save(path)
        if len(list(path.parent.glob(f"{path.name}*"))) > 1:
            raise InputError(
                "the network is too large for one file, but one graph is written. Export the calibrator alone, and "
                "run it behind the network."
            )


def _identify(path: Path, calibrator: Calibrator) -> None:
    """Name the calibrator and the axes in an ONNX file, and remove paths and whatever else differs by machine."""
    if path.suffix != ".onnx":
        return
    onnx = need("onnx", "onnx")
    made = onnx.load(path)
    made.producer_name, made.producer_version, made.doc_string = "segcal", __version__, ""
    _strip(made.graph)
    for function in made.functions:
        _strip(function)
    first = made.graph.input[0].type.tensor_type.shape.dim
    titles = ("batch", "", *SPACE[-(len(first) - 2) :])
    fresh = {
        size.dim_param: title for size, title in zip(first, titles, strict=False) if NUMBERED.fullmatch(size.dim_param)
    }
    for one in (*made.graph.input, *made.graph.output):
        for size in one.type.tensor_type.shape.dim:
            if size.dim_param:
                size.dim_param = NUMBERED.sub(lambda found: fresh.get(found[0], found[0]), size.dim_param)
    kept = {entry.key: entry.value for entry in made.metadata_props}
    with suppress(InputError):  # a class of the user's own that no file can hold has no digest
        kept["segcal.calibrator_digest"] = calibrator_digest(calibrator)[:16]
    onnx.helper.set_model_props(made, kept | {
        "segcal.version": __version__,
        "segcal.calibrator": calibrator.name,
        "segcal.expects": "logits",
        "segcal.preserves": calibrator.preserves or "none",
    })  # fmt: skip
    onnx.save(made, path)


def _strip(graph: Any) -> None:
    """Remove what exporters note beside nodes, also of inner graphs."""
    del graph.metadata_props[:], graph.value_info[:]
    for node in graph.node:
        del node.metadata_props[:]
        node.doc_string = ""
        for attribute in node.attribute:
            for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                _strip(inner)
    for tensor in getattr(graph, "initializer", ()):
        del tensor.metadata_props[:]


def _compared(target: Path, path: Path, calibrator: Calibrator, module: nn.Module, given: tuple[Any, ...]) -> Exported:
    tensors = [part for each in given for part in (each if isinstance(each, Context) else (each,)) if part is not None]
    with _quietly():
        expected = first_tensor(module(*given))
        if path.suffix == ".pt2":
            found = first_tensor(torch.export.load(path).module()(*given))
            inputs: tuple[str, ...] = ("logits" if isinstance(module, Calibrator) else "image",)
        else:
            session = _session(path)
            inputs = tuple(one.name for one in session.get_inputs())
            values = {name: tensor.numpy() for name, tensor in zip(inputs, tensors, strict=True)}
            found = torch.from_numpy(session.run(None, values)[0])
    return _judged(target, inputs, calibrator, expected, found)


def first_tensor(output: Any) -> Tensor:
    """Return the log-probabilities of what an attached network returns."""
    if isinstance(output, Tensor):
        return output
    return output[0] if isinstance(output, tuple | list) else output.get("out", output.get("logits"))


def _judged(target: Path, inputs: tuple[str, ...], calibrator: Calibrator, expected: Tensor, found: Tensor) -> Exported:
    if isinstance(calibrator, PerRegion):
        half, what = -math.log(2), "has another mask, or regions less nested,"
        other = ((found > half) != (expected > half)).any(1)
        for i, o in calibrator.regions.nested:
            other |= (found[:, i] > found[:, o]) & (expected[:, i] <= expected[:, o])
    else:
        other, what = found.argmax(1) != expected.argmax(1), "names another class"
        if calibrator.preserves is None:  # of classes that tie but for rounding, either may win
            other &= _leads(expected, found) | _leads(found, expected)
    flips = int(other.sum())
    if flips:
        raise InputError(
            f"{target} {what} than the library at {flips} of {expected[:, 0].numel()} voxels, but a graph "
            "must keep them all. Report the calibrator and the versions of torch and onnxruntime: nothing was written."
        )
    return Exported(target, inputs, expected[:, 0].numel(), flips, float((found - expected).abs().max()))


def _leads(one: Tensor, other: Tensor) -> Tensor:
    """Return where the winner of one stands above that of the other by more than rounding."""
    top, runner_up = one.amax(1), one.gather(1, other.argmax(1)[:, None])[:, 0]
    return top - runner_up > TIE * (1 + top.abs())


def _session(path: Path) -> Any:
    return need("onnxruntime", "onnx").InferenceSession(path, providers=["CPUExecutionProvider"])


def _join(target: Path, beside: Path, source: Path, calibrator: Calibrator, output: str | None) -> Exported:
    """Put the calibrator behind the logits of an ONNX file."""
    onnx = need("onnx", "onnx")
    compose, converter = need("onnx.compose", "onnx"), need("onnx.version_converter", "onnx")
    if not source.is_file() or source.suffix != ".onnx":
        raise InputError(f"model is {source}, but an .onnx file or a torch module is needed. Export the network first.")
    host = onnx.load(source)
    logits = _logits_of(host, output, source)
    check_classes(calibrator, _classes_of(logits, calibrator, source), f"output {logits.name!r} of {source}")
    opset = max(OLDEST, *(entry.version for entry in host.opset_import if entry.domain in ("", "ai.onnx")))
    host = converter.convert_version(host, opset)
    axes = len(logits.type.tensor_type.shape.dim) - 2
    given = _example(calibrator, axes, torch.float32)
    _write(calibrator, given, beside, opset)
    _identify(beside, calibrator)
    tail = onnx.load(beside)
    host.ir_version = tail.ir_version = max(host.ir_version, tail.ir_version)
    joined = compose.merge_models(host, tail, io_map=[(logits.name, "logits")], prefix2="segcal_",
        outputs=[*(one.name for one in host.graph.output), f"segcal_{OUTPUT}"])  # fmt: skip
    _rename(joined, f"segcal_{OUTPUT}", OUTPUT)
    shape = joined.graph.output[-1].type.tensor_type.shape.dim
    for axis in (0, *range(2, len(shape))):  # axes have the names that the network gives them
        shape[axis].CopyFrom(logits.type.tensor_type.shape.dim[axis])
    onnx.save(joined, beside)
    _identify(beside, calibrator)
    return _same_as_in_two_steps(target, beside, source, logits.name, calibrator)


def _logits_of(host: Any, output: str | None, source: Path) -> Any:
    outputs = {one.name: one for one in host.graph.output}
    if output is None and len(outputs) == 1:
        return next(iter(outputs.values()))
    if output not in outputs:
        raise InputError(
            f"{source} has the outputs {', '.join(outputs)}, but one of them must be the logits. Name it with output=."
        )
    return outputs[output]


def _classes_of(logits: Any, calibrator: Calibrator, source: Path) -> int:
    sizes = logits.type.tensor_type.shape.dim
    if len(sizes) < 2:
        raise InputError(
            f"{source} has an output without class axis, but (batch, classes, *space) is needed. Check it."
        )
    return int(sizes[1].dim_value) or calibrator.num_classes  # 0: the file does not say


def _rename(model: Any, old: str, new: str) -> None:
    for node in model.graph.node:
        node.output[:] = [new if name == old else name for name in node.output]
    for one in model.graph.output:
        one.name = new if one.name == old else one.name


def _same_as_in_two_steps(target: Path, beside: Path, source: Path, logits: str, calibrator: Calibrator) -> Exported:
    """Compare the joined graph with the network alone, whose logits the library calibrates."""
    alone, joined = _session(source), _session(beside)
    generator = torch.Generator().manual_seed(0)
    shapes = {one.name: [size if isinstance(size, int) else 32 for size in one.shape] for one in alone.get_inputs()}
    values = {name: torch.randn(shape, generator=generator).numpy() for name, shape in shapes.items()}
    with torch.no_grad():
        expected = calibrator(torch.from_numpy(alone.run([logits], values)[0]))
    return _judged(target, tuple(shapes), calibrator, expected, torch.from_numpy(joined.run([OUTPUT], values)[0]))
