"""Models of transformers': by name, by type (``hf:bert``), from a local folder or from the hub.

A name's class and sizes stand in ``models.toml``: no download, random weights from a fixed seed.
Layer norms keep outputs of ordinary size, so nothing needs calibration. Attention is what the
class takes by itself: scaled-dot-product attention where it has it, what users run.

A type has random weights and its configuration class's own sizes. A folder, or a hub id, has the
sizes of its ``config.json`` and the weights of its safetensors files; weights in any other format
are pickles, which are not read: the model then has random ones, and a note says so.
A model whose code comes with it is refused unless the user trusts that code.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from frameworktax import host
from frameworktax.errors import UsageError, cut, nearest
from frameworktax.models import BUILT_IN, PREFIXES, length_of, refuse
from frameworktax.models.base import (
    DEFAULT_IMAGE_SIZE,
    DEFAULT_LENGTH,
    SEED,
    Draw,
    Model,
    calibrate,
    deep,
    integers,
    model_of,
    normal,
    ones,
    wide,
)
from frameworktax.models.finalize import no_generation
from frameworktax.records import Workload

TWIN_LENGTH = 8
"""Tokens of a twin: what the framework costs does not grow with the length, kernels do."""
LANDMARKS = 64
CHUNK = 64
"""Tokens that a Reformer's token looks back over; shorter texts get full attention."""
BIG_BIRD_FULL = 704
"""Tokens up to which BigBird's class switches to full attention."""
TWIN_SAMPLES = 2_000
"""Samples of a twin's audio."""
CHANNELS = 512
DECODER_TOKENS = 16
FRAMES, TWIN_FRAMES = 3_000, 8
"""Mel frames of 30 s, which Whisper's encoder always takes: shorter audio is padded."""
TEXT, AUDIO, MEL, IMAGE = "input_ids", "input_values", "input_features", "pixel_values"
"""What transformers calls the main input of a model."""


# --- by name: a class and its sizes ---------------------------------------------------------------


class Shape(NamedTuple):
    """Sizes of a transformer; ``inner`` is the width between a layer's two linear maps."""

    layers: int
    hidden: int
    heads: int
    inner: int

    def named(self, names: Sequence[str]) -> dict[str, int]:
        """Return the sizes as settings of these names; an empty name leaves its size out."""
        return {name: size for name, size in zip(names, self, strict=True) if name}


COMMON = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size")
"""What most of transformers' configurations call the four sizes."""


def scaled(row: Mapping[str, Any], workload: Workload) -> Shape:
    """Return a model's shape after the factors; the number of heads stays.

    Width scales the dimension of a head, so that hidden stays a multiple of the heads. The twin
    has heads of dimension ``least_head`` and nothing wider than the sum of its heads.
    """
    full, least_head = Shape(*row["shape"]), row.get("least_head", 1)
    layers = deep(full.layers, workload)
    hidden = full.heads * wide(full.hidden // full.heads, workload, least_head)
    inner = hidden if workload.twin else round(full.inner / full.hidden * hidden)
    return Shape(layers, hidden, full.heads, inner)


def make(row: Mapping[str, Any], kind: str | None = None, **settings: Any) -> Any:
    """Return a seeded model of the class in a row, or of another ``kind``, with these settings."""
    import torch

    family, _, stem = row["class"].partition(".")
    package = f"transformers.models.{family}"
    configuration = importlib.import_module(f"{package}.configuration_{family}")
    modeling = importlib.import_module(f"{package}.modeling_{family}")
    torch.manual_seed(SEED)
    config = getattr(configuration, f"{stem}Config")(**settings)
    return getattr(modeling, kind or row.get("model", f"{stem}Model"))(config)


def build(name: str, workload: Workload) -> Model:
    """Build a language or speech model in float32 on the CPU."""
    row = BUILT_IN[name].row
    generates, causal = workload.phase == "generate", row.get("causal")
    shape = scaled(row, workload)
    settings = {**row.get("settings", {}), **shape.named(row.get("names", COMMON))}
    derive = DERIVED.get(row.get("derive", name))
    if derive is not None:
        settings |= derive(shape, workload)
    if causal:
        settings["use_cache"] = generates
    module = make(row, causal if generates else None, **settings)
    length = length_of(workload)
    if workload.twin:
        most = TWIN_SAMPLES if module.main_input_name == AUDIO else TWIN_LENGTH
        shorter = TWIN_LENGTHS.get(name)
        length = shorter(length) if shorter is not None else min(length, most)
    named = drawers(name, module, length)
    if not row.get("mask", True):
        named.pop("attention_mask", None)
    positions = BUILT_IN[name].max_length
    return model_of(module, named=named, positions=positions)


def _nystromformer(shape: Shape, workload: Workload) -> dict[str, Any]:
    """Its class wants the length in its configuration, and a whole number of tokens a landmark.

    Up to 64 tokens each is its own landmark, which is full attention. Other lengths that 64 does
    not divide raise UsageError.
    """
    length = length_of(workload)
    if length > LANDMARKS and length % LANDMARKS:
        raise UsageError(
            f"{workload.model} takes up to {LANDMARKS} tokens or a multiple of {LANDMARKS}, "
            f"not {length}; choose another --length"
        )
    if workload.twin:
        length = TWIN_LENGTHS["nystromformer"](length)
    return {"segment_means_seq_len": length, "num_landmarks": min(length, LANDMARKS)}


def _reformer(shape: Shape, workload: Workload) -> dict[str, Any]:
    axial = shape.hidden // 4 or 1
    return {
        "attn_layers": [("local", "lsh")[i % 2] for i in range(shape.layers)],
        "attention_head_size": shape.hidden // shape.heads,
        "axial_pos_embds_dim": [axial, shape.hidden - axial],
    }


def _audio(shape: Shape, workload: Workload) -> dict[str, Any]:
    """Convolutions over raw audio; two channels for the twin, on one some layouts coincide."""
    return {
        "conv_dim": [2 if workload.twin else wide(CHANNELS, workload)] * 7,
        # The groups of the positional convolution: 16, or as many as divide the width.
        "num_conv_pos_embedding_groups": max(g for g in range(1, 17) if shape.hidden % g == 0),
    }


def _speecht5(shape: Shape, workload: Workload) -> dict[str, Any]:
    return {
        "decoder_layers": shape.layers // 2 or 1,
        "decoder_attention_heads": shape.heads,
        "decoder_ffn_dim": shape.inner,
        **_audio(shape, workload),
    }


DERIVED: Mapping[str, Callable[[Shape, Workload], Mapping[str, Any]]] = {
    "electra": lambda shape, _: {"embedding_size": shape.hidden},
    "albert": lambda shape, workload: {
        "embedding_size": shape.hidden if workload.twin else wide(128, workload)
    },
    "mobilebert": lambda shape, _: {
        "hidden_size": 4 * shape.hidden,
        "embedding_size": shape.hidden,
        "intra_bottleneck_size": shape.hidden,
    },
    "squeezebert": lambda shape, _: {"embedding_size": shape.hidden},
    "funnel": lambda shape, _: {
        "block_sizes": [shape.layers] * 3,
        "d_head": shape.hidden // shape.heads,
    },
    "nystromformer": _nystromformer,
    "reformer": _reformer,
    "mamba": lambda _, workload: {"state_size": 1 if workload.twin else 16},
    "qwen3": lambda shape, _: {
        "head_dim": shape.hidden // shape.heads,
        "hidden_size": shape.hidden // 2,
        "intermediate_size": shape.inner // 2,
    },
    "audio": _audio,
    "speecht5": _speecht5,
    "whisper": lambda _, workload: {
        "max_source_positions": (TWIN_FRAMES if workload.twin else FRAMES) // 2
    },
}
"""Settings that follow from shape and workload; they win over those of the table."""

TWIN_LENGTHS: Mapping[str, Callable[[int], int]] = {
    # Shorter ones would take another path, with other operators.
    "nystromformer": lambda length: min(length, 2 * LANDMARKS),
    "bigbird": lambda length: length if length > BIG_BIRD_FULL else min(length, TWIN_LENGTH),
    "reformer": lambda length: min(length, 2 * CHUNK if length > CHUNK else TWIN_LENGTH),
    # Its scan dispatches operators for every token, so a shorter twin would be another program.
    "mamba": lambda length: length,
}
"""Tokens of the full model → of its twin, where those of ``TWIN_LENGTH`` would not do."""


# --- inputs: what a class says that it takes ------------------------------------------------------


def drawers(name: str, module: Any, length: int, side: int | None = None) -> dict[str, Draw]:
    """Return what to draw for a model of transformers', a sample of its main input first.

    That is token ids and their mask, or noise for pixels, raw audio and mel frames; and ids for a
    decoder that follows.

    Args:
        name: of the model, for messages.
        module: the model.
        length: tokens or samples of audio.
        side: pixels; None for the model's own.

    Raises:
        UsageError: the shape of its main input does not follow from its configuration.
    """
    main, config = module.main_input_name, module.config
    mels = getattr(config, "num_mel_bins", None)
    steps = getattr(config, "max_source_positions", None)
    shape: tuple[int, ...] = (length,)
    if main == IMAGE:
        vision = getattr(config, "vision_config", None) or config
        own = getattr(vision, "image_size", None) or DEFAULT_IMAGE_SIZE
        height, width = own if isinstance(own, list | tuple) else (own, own)
        shape = (int(getattr(vision, "num_channels", 3)), side or int(height), side or int(width))
    elif main == MEL and mels is not None and steps is not None:
        shape = (int(mels), 2 * int(steps))
    elif main not in (TEXT, AUDIO):
        raise UsageError(
            f"{name} takes '{main}' of a shape that its configuration does not give; write a "
            "function that returns the model and its inputs (file.py:function)"
        )
    takes = inspect.signature(module.forward).parameters
    vocabulary = int(getattr(config.get_text_config(), "vocab_size", None) or 2)
    found = {main: integers(vocabulary, *shape) if main == TEXT else normal(*shape)}
    if main == TEXT and "attention_mask" in takes:
        found["attention_mask"] = ones(*shape)
    if getattr(config, "is_encoder_decoder", False) and "decoder_input_ids" in takes:
        found["decoder_input_ids"] = integers(vocabulary, DECODER_TOKENS)
    return found


# --- hf: a type, a folder, the hub ----------------------------------------------------------------

CALIBRATION_BATCH = 2
TWO_SECONDS = 32_000
"""Samples of audio."""
HUB_S = 5.0
"""That the hub has to answer; its own client asks six times, over half a minute."""


def build_any(name: str, workload: Workload) -> Model:
    """Build a type, a folder's or a hub's model in float32 on the CPU.

    Raises:
        UsageError: no such model, or one that needs code, memory or inputs that are not there.
    """
    import torch

    wanted = name.partition(":")[2]
    config = _config(wanted, workload)
    kind = _class(config, workload)
    settings = {"dtype": torch.float32, "trust_remote_code": workload.trust_remote_code}
    notes: list[tuple[str, str]] = []
    module = _trained(wanted, kind, {"config": config, **settings})
    is_trained = module is not None
    if not is_trained:
        _check_memory(name, kind, config, settings)
        torch.manual_seed(SEED)
        module = kind.from_config(config, **settings)
        if "/" in wanted or Path(wanted).is_dir():
            text = f"random weights: {wanted} has none in safetensors files, others are not read"
            notes.append(("random-weights", text))
    main = module.main_input_name
    positions = _positions(module) if main == TEXT else None
    own = replace(
        PREFIXES["hf:NAME"],
        has_length=main in (TEXT, AUDIO),
        has_image_size=main == IMAGE,
        max_length=positions,
    )
    refuse(workload, own)
    length = TWO_SECONDS if main == AUDIO else min(DEFAULT_LENGTH, positions or DEFAULT_LENGTH)
    model = model_of(
        module,
        named=drawers(name, module, workload.length or length, workload.image_size),
        has_twin=False,
        notes=notes,
        positions=positions,
    )
    if not is_trained:
        calibrate(module, model.inputs(CALIBRATION_BATCH))
    return model


def _config(name: str, workload: Workload) -> Any:
    """Return the configuration of a type, a folder or a hub id."""
    from transformers import AutoConfig, PreTrainedConfig
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING, CONFIG_MAPPING_NAMES

    is_folder = Path(name).is_dir()
    if not is_folder and "/" not in name:
        if name not in CONFIG_MAPPING_NAMES:
            raise UsageError(
                f"transformers has no model type '{name}'{nearest(name, CONFIG_MAPPING_NAMES)} "
                "(a model on the hub: hf:owner/name; a folder: hf:./name)"
            )
        return CONFIG_MAPPING[name]()
    if not is_folder and name[0] in "./":
        raise UsageError(f"no folder {name} (for hf:{name}); name one written by save_pretrained")
    try:
        if not is_folder:
            _ask_hub()
        settings, _ = PreTrainedConfig.get_config_dict(name)
        foreign = settings.get("model_type") not in CONFIG_MAPPING_NAMES
        if foreign and "auto_map" in settings and not workload.trust_remote_code:
            raise UsageError(
                f"hf:{name} brings code of its own, which would run here; read it, and if you "
                "trust it add --trust-remote-code"
            )
        return AutoConfig.from_pretrained(name, trust_remote_code=workload.trust_remote_code)
    # What transformers raises for all that is not there, or no configuration.
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise UsageError(
            f"hf:{name} cannot be loaded: {cut(str(error))}; name a model type (hf:bert), a "
            "folder written by save_pretrained (hf:./folder), or a model on the hub (hf:owner/name)"
        ) from error


def _ask_hub() -> None:
    """Have the hub's client use its cache alone where the hub does not answer: it would try on."""
    from huggingface_hub import constants, get_session

    if constants.HF_HUB_OFFLINE:
        return
    try:  # with its proxies and certificates
        get_session().head(constants.ENDPOINT, timeout=HUB_S)
    except Exception:  # noqa: BLE001  requests' or httpx's, by the client's version
        constants.HF_HUB_OFFLINE = True


def _class(config: Any, workload: Workload) -> Any:
    """Return the auto class: with a language-model head to generate, plain otherwise."""
    from transformers import AutoModel, AutoModelForCausalLM
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    )

    if workload.phase != "generate":
        return AutoModel
    kind = config.model_type
    # Encoders have a causal class too, for a use as decoder that their weights do not know.
    decodes = kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    encodes = kind in MODEL_FOR_MASKED_LM_MAPPING_NAMES and not getattr(config, "is_decoder", False)
    own = "AutoModelForCausalLM" in getattr(config, "auto_map", {})
    if not own and (encodes or not decodes):
        raise UsageError(no_generation(workload.model))
    return AutoModelForCausalLM


def _trained(name: str, kind: Any, settings: Mapping[str, Any]) -> Any:
    """Return a model with the weights of its safetensors files; None where it has none.

    Raises:
        UsageError: they are damaged, or out of reach.
    """
    from safetensors import SafetensorError

    try:
        if not _has_safetensors(name):
            return None
        return kind.from_pretrained(name, use_safetensors=True, **settings)
    except (OSError, SafetensorError) as error:
        is_folder = Path(name).is_dir()
        remedy = "write it again by save_pretrained" if is_folder else "connect to the hub"
        raise UsageError(
            f"the weights of hf:{name} cannot be read: {cut(str(error))}; {remedy}"
        ) from error


def _has_safetensors(name: str) -> bool:
    if Path(name).is_dir():
        return any(Path(name).glob("*.safetensors"))
    if "/" not in name:
        return False
    from huggingface_hub import file_exists, try_to_load_from_cache

    files = ("model.safetensors", "model.safetensors.index.json")
    if any(isinstance(try_to_load_from_cache(name, file), str) for file in files):
        return True
    return any(file_exists(name, file) for file in files)


def _check_memory(name: str, kind: Any, config: Any, settings: Mapping[str, Any]) -> None:
    """Refuse weights that this machine's free memory cannot hold, before making them."""
    import torch

    try:
        with torch.device("meta"):
            ghost = kind.from_config(config, **settings)
    except ValueError as error:  # AutoModel knows no class for this type
        text = cut(str(error), 150)
        raise UsageError(f"{name} cannot be built: {text}; choose another type") from error
    except (NotImplementedError, RuntimeError):  # reads values while it is made: size unknown
        return
    needed, free = 4 * sum(p.numel() for p in ghost.parameters()), host.memory_available_bytes()
    if needed > free:
        raise UsageError(
            f"{name} has {needed / 1e9:.1f} GB of weights and {free / 1e9:.1f} GB are free; name a "
            "folder with a config.json of smaller sizes"
        )


def _positions(module: Any) -> int | None:
    """Return how many tokens have a position; some count on from the padding token's id."""
    most = getattr(module.config.get_text_config(), "max_position_embeddings", None)
    if not isinstance(most, int) or most < 1:
        return None
    for path, layer in module.named_modules():
        padding = getattr(layer, "padding_idx", None)
        if path.endswith("position_embeddings") and padding is not None:
            return int(most - padding - 1)
    return most
