"""The last step of every model: the inputs, the phase, the precision and the device asked for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from frameworktax.errors import UsageError, cut
from frameworktax.models import ragged
from frameworktax.models.base import Decoding, Inputs, Model
from frameworktax.records import Workload

NO_IMAGES = "--channels-last is for models that take images; leave it out"


def no_generation(name: str) -> str:
    """Return why a model cannot decode, and what to choose."""
    return (
        f"{name} generates no text: it is no decoder with a head; leave out --phase generate, "
        "or choose gpt2"
    )


def check_positions(name: str, prompt: int, tokens: int, most: int | None) -> None:
    """Raise UsageError for a prompt and new tokens that are more than a model has positions."""
    if most is not None and prompt + tokens > most:
        raise UsageError(
            f"{name} has {most} positions: {prompt} tokens of --length and {tokens} of "
            "--new-tokens are too many; choose fewer"
        )


def finalize(model: Model, workload: Workload, device: str) -> Model:
    """Return a model that its family built in float32 on the CPU as the workload wants it.

    ``device`` is ``cpu`` or ``cuda:N``.

    Raises:
        UsageError: it cannot generate, takes no ragged input, or has no images.
    """
    if workload.phase == "generate":
        model = _decoding(model, workload)
    if workload.input == "ragged":
        model = ragged.apply(model, *ragged.moments(workload), workload.length)
    return place(model, workload.precision, device, channels_last=workload.channels_last)


def unmasked(model: Model) -> Model:
    """Return a model whose dense input comes without the mask, which is all ones.

    Transformers asks ``attention_mask.all()`` before it drops such a mask. On a device that is a
    synchronise inside the call, which no graph may hold, and under capture or tracing another way
    through attention is taken than in eager.
    """
    path = f"kwargs.{ragged.MASK}"
    if path not in model.batch_dims:
        return model

    def inputs(batch: int) -> Inputs:
        given = model.inputs(batch)
        kwargs = {name: value for name, value in given.kwargs.items() if name != ragged.MASK}
        return replace(given, kwargs=kwargs)

    text = "dense input has no padding: on a device it is given without attention_mask"
    return replace(
        model,
        inputs=inputs,
        batch_dims={name: dim for name, dim in model.batch_dims.items() if name != path},
        notes=[*model.notes, ("no-mask", text)],
    )


def _decoding(model: Model, workload: Workload) -> Model:
    name, tokens = workload.model, workload.new_tokens
    can = getattr(model.module, "can_generate", None)  # of transformers' classes
    if not (callable(can) and can()):
        raise UsageError(no_generation(name))
    if tokens is None or workload.kv_cache is None:
        raise UsageError("--phase generate needs --new-tokens and --kv-cache")
    ids = model.inputs(1).kwargs.get(ragged.IDS)
    if ids is None:
        raise UsageError(f"{name} takes no {ragged.IDS} by name, so nothing can be appended to it")
    check_positions(name, int(ids.shape[1]), tokens, model.positions)
    return replace(model, decoding=Decoding(tokens, workload.kv_cache))


def place(model: Model, precision: str, device: str, *, channels_last: bool = False) -> Model:
    """Return the model in eval mode, in this precision, on this device, and its inputs alike.

    A workload in int8 starts from float32: what is quantised, and how, is the runtime's own.
    With ``channels_last`` images and convolution weights are in that memory format.

    Raises:
        UsageError: channels-last for a model without images.
    """
    import torch

    dtype = torch.float32 if precision == "int8" else getattr(torch, precision)

    def moved(_: str, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        # An ONNX file's inputs have the types that its graph says.
        casts = value.is_floating_point() and model.onnx_path is None
        kind = dtype if casts else None
        form = torch.channels_last if channels_last and is_image(value) else torch.preserve_format
        return value.to(device=device, dtype=kind, memory_format=form)

    def inputs(batch: int) -> Inputs:
        return model.inputs(batch).map(moved)

    built = [*model.module.parameters(), *model.module.buffers()]
    if model.onnx_path is None:
        built += model.inputs(1).tensors().values()
    kinds = {t.dtype for t in built if t.is_floating_point()} - {torch.float32, dtype}
    notes = list(model.notes)
    if kinds:
        names = ", ".join(sorted(str(kind).removeprefix("torch.") for kind in kinds))
        text = f"what the model has in {names} is computed in {str(dtype).removeprefix('torch.')}"
        notes.append(("precision-cast", text))
    # Not by a dtype of ``to``: that casts complex numbers too, their imaginary part left out.
    cast = {torch.float16: "half", torch.bfloat16: "bfloat16"}.get(dtype, "float")
    module = getattr(model.module.eval(), cast)().to(device=device)
    if channels_last:
        if not any(is_image(value) for _, value in model.inputs(1).items()):
            raise UsageError(NO_IMAGES)
        module = module.to(memory_format=torch.channels_last)
    return replace(model, module=module, inputs=inputs, notes=notes)


def is_image(value: Any) -> bool:
    """Return whether a value is what channels-last is for: floating-point, in four dimensions."""
    import torch

    return isinstance(value, torch.Tensor) and value.dim() == 4 and value.is_floating_point()


def check_device(device: str) -> None:
    """Raise UsageError where torch cannot reach the device asked for."""
    if device == "cpu":
        return
    import torch

    if not torch.cuda.is_available():
        why = "this torch has no CUDA"
        if torch.version.cuda or torch.version.hip:
            why = "no device works"
            try:
                torch.cuda.init()
            except RuntimeError as error:  # a driver that is too old, a device of another user
                why += f" ({cut(str(error))})"
        raise UsageError(f"--device {device}: {why}; choose --device cpu")
    index = int(device.partition(":")[2] or 0)
    if index >= torch.cuda.device_count():
        raise UsageError(
            f"--device {device}: this machine has cuda:0 to cuda:{torch.cuda.device_count() - 1}"
        )
