"""``hf:``: a model type of transformers, a local folder, or a model on the Hugging Face hub.

A type has random weights and its configuration class's own sizes. A folder, or a hub id, has the
sizes of its ``config.json`` and the weights of its safetensors files; weights in any other format
are pickles, which are not read: the model then has random ones, and a note says so.
A model whose code comes with it is refused unless the user trusts that code.
"""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from frameworktax import host
from frameworktax.errors import UsageError, nearest
from frameworktax.models.base import SEED, Draw, Model, model_of
from frameworktax.models.calibrate import calibrate
from frameworktax.models.finalize import no_generation
from frameworktax.models.transformers_classes import drawers

if TYPE_CHECKING:
    from frameworktax.records import Workload

CONFIG = "config.json"
CALIBRATION_BATCH = 2
DEFAULT_LENGTH, DEFAULT_IMAGE_SIZE, TWO_SECONDS = 128, 224, 32_000
"""Tokens, pixels a side, samples of audio."""
PROXIES = ("http_proxy", "https_proxy", "all_proxy")


def check(workload: Workload) -> None:
    """Refuse a folder that holds no configuration; imports nothing.

    Raises:
        UsageError: one line that says what to change.
    """
    name = workload.model.partition(":")[2]
    folder = Path(name)
    if not name:
        raise UsageError("hf: names no model; write hf:bert, hf:FOLDER or hf:owner/name")
    if folder.is_dir():
        file = folder / CONFIG
        if not file.is_file():
            raise UsageError(
                f"{folder} holds no {CONFIG}; name a folder written by save_pretrained"
            )
        try:
            settings = json.loads(file.read_text(encoding="utf-8"))
        except ValueError as error:
            raise UsageError(f"{file} is no JSON ({error}); write it again") from error
        if not isinstance(settings, dict):
            raise UsageError(f"{file} holds no table of settings; write it again")
    elif name.startswith((".", "/", "~")):
        raise UsageError(f"no folder {name}; check the path")


def build(name: str, workload: Workload) -> Model:
    """Build a model of transformers' in float32 on the CPU.

    Raises:
        UsageError: no such model, or one that needs code, memory or inputs that are not there.
    """
    import torch

    wanted = name.partition(":")[2]
    config = _config(wanted, workload)
    kind = _class(config, workload)
    trust: dict[str, Any] = {"trust_remote_code": True} if workload.trust_remote_code else {}
    notes: list[tuple[str, str]] = []
    trained = _has_safetensors(wanted)
    if trained:
        module = kind.from_pretrained(
            wanted, config=config, use_safetensors=True, dtype=torch.float32, **trust
        )
    else:
        _check_memory(name, kind, config, trust)
        torch.manual_seed(SEED)
        module = kind.from_config(config, dtype=torch.float32, **trust)
        if "/" in wanted or Path(wanted).is_dir():
            text = f"random weights: {wanted} has none in safetensors files, others are not read"
            notes.append(("random-weights", text))
    is_text = module.main_input_name == "input_ids"
    model = model_of(
        module,
        named=_inputs(name, module, workload),
        has_twin=False,
        notes=notes,
        generates=workload.phase == "generate",
        positions=_positions(module) if is_text else None,
    )
    if not trained:
        calibrate(module, [model.inputs(CALIBRATION_BATCH)])
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
    if not is_folder:
        _check_reachable(name)
    try:
        settings, _ = PreTrainedConfig.get_config_dict(name)
        foreign = settings.get("model_type") not in CONFIG_MAPPING_NAMES
        if foreign and "auto_map" in settings and not workload.trust_remote_code:
            raise UsageError(
                f"hf:{name} brings code of its own, which would run here; read it, and if you "
                "trust it add --trust-remote-code"
            )
        return AutoConfig.from_pretrained(name, trust_remote_code=workload.trust_remote_code)
    except (OSError, ValueError) as error:  # what transformers raises for all that is not there
        text = " ".join(str(error).split())[:200]
        raise UsageError(f"hf:{name} cannot be loaded: {text}; check the name") from error


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


def _check_reachable(name: str) -> None:
    """Refuse at once where neither cache nor network has the model: the hub's client tries on."""
    from huggingface_hub import constants, try_to_load_from_cache

    if isinstance(try_to_load_from_cache(name, CONFIG), str):
        return
    if any(os.environ.get(p) or os.environ.get(p.upper()) for p in PROXIES):
        return  # a proxy knows names that this host does not
    host = urlsplit(constants.ENDPOINT).hostname or ""
    try:
        if constants.HF_HUB_OFFLINE:
            raise OSError("HF_HUB_OFFLINE is set")
        socket.getaddrinfo(host, 443)
    except OSError as error:
        raise UsageError(
            f"hf:{name} is not in the local cache and {host} cannot be reached ({error}); "
            "name a folder that holds the model, or a type such as hf:bert"
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


def _check_memory(name: str, kind: Any, config: Any, trust: dict[str, Any]) -> None:
    """Refuse weights that this machine's free memory cannot hold, before making them."""
    import torch

    try:
        with torch.device("meta"):
            ghost = kind.from_config(config, dtype=torch.float32, **trust)
    except ValueError as error:  # AutoModel knows no class for this type
        text = " ".join(str(error).split())[:150]
        raise UsageError(f"{name} cannot be built: {text}; choose another type") from error
    except (NotImplementedError, RuntimeError):  # reads values while it is made: size unknown
        return
    needed = sum(p.numel() * p.element_size() for p in ghost.parameters())
    free = host.memory_available_bytes()
    if needed > free:
        raise UsageError(
            f"{name} has {needed / 1e9:.1f} GB of weights and {free / 1e9:.1f} GB are free; name a "
            f"folder with a {CONFIG} of smaller sizes"
        )


# --- inputs of a model that is known by its class only --------------------------------------------


def _inputs(name: str, module: Any, workload: Workload) -> dict[str, Draw]:
    """Return what to draw for a model, which follows from its main input.

    That is token ids, pixels, raw audio or mel frames.

    Raises:
        UsageError: it takes something else, or the length does not fit its positions.
    """
    main = module.main_input_name
    if workload.length is not None and main not in ("input_ids", "input_values"):
        raise UsageError(f"{name} has no length; leave out --length")
    if workload.image_size is not None and main != "pixel_values":
        raise UsageError(f"{name} has no image size; leave out --image-size")
    if workload.input == "ragged" and main != "input_ids":
        raise UsageError(f"{name} takes no sentences; leave out --input ragged")
    return drawers(module, *_shape(name, module, workload))


def _shape(name: str, module: Any, workload: Workload) -> tuple[int, ...]:
    """Return the shape of one sample of a model's main input."""
    main, config = module.main_input_name, module.config
    if main == "input_ids":
        positions = _positions(module)
        length = workload.length
        if length is None:
            length = DEFAULT_LENGTH if positions is None else min(DEFAULT_LENGTH, positions)
        if positions is not None and length > positions:
            raise UsageError(
                f"{name} takes lengths from 1 to {positions}, not {length}; choose another --length"
            )
        return (length,)
    if main == "input_values":
        return (TWO_SECONDS if workload.length is None else workload.length,)
    if main == "pixel_values":
        vision = getattr(config, "vision_config", None) or config
        own = getattr(vision, "image_size", None) or DEFAULT_IMAGE_SIZE
        height, width = own if isinstance(own, list | tuple) else (own, own)
        size = workload.image_size
        return int(getattr(vision, "num_channels", 3)), size or int(height), size or int(width)
    mels = getattr(config, "num_mel_bins", None)
    steps = getattr(config, "max_source_positions", None)
    if main != "input_features" or mels is None or steps is None:
        raise UsageError(
            f"{name} takes '{main}' of a shape that its configuration does not give; write a "
            "function that returns the model and its inputs (file.py:function)"
        )
    return int(mels), 2 * int(steps)


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
