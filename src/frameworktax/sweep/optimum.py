"""Configurations of optimum-benchmark (YAML) as studies.

Only plain data is read (``yaml.safe_load``). What a study has no word for is named in comments at
its head, never dropped in silence.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from frameworktax import models
from frameworktax.errors import UsageError
from frameworktax.records import PRECISIONS
from frameworktax.sweep.schema import CACHES

RUNTIMES = {"pytorch": "eager", "onnxruntime": "onnxruntime", "openvino": "openvino"}
"""Its back-ends that are runtimes here."""
NAMES = {
    "bert-base-uncased": "bert-base",
    "google-bert/bert-base-uncased": "bert-base",
    "bert-large-uncased": "bert-large",
    "google-bert/bert-large-uncased": "bert-large",
    "distilbert-base-uncased": "distilbert",
    "distilbert/distilbert-base-uncased": "distilbert",
    "roberta-base": "roberta",
    "FacebookAI/roberta-base": "roberta",
    "openai-community/gpt2": "gpt2",
    "prajjwal1/bert-tiny": "bert-tiny",
    "microsoft/resnet-18": "resnet-18",
    "microsoft/resnet-50": "resnet-50",
}
"""Names on the hub → models written out here, with random weights."""
SHAPES = {
    "batch_size": "batch",
    "sequence_length": "length",
    "height": "image_size",
}
SILENT = {
    "defaults", "hydra", "name", "backend", "scenario", "launcher", "log_level", "print_report",
    "log_report",
}  # fmt: skip
"""Keys that are walked on their own, or say nothing about what is measured."""


def convert(path: Path) -> str:
    """Return a study that measures what a configuration of optimum-benchmark would.

    Raises:
        UsageError: PyYAML is missing, or the file is none of its configurations.
    """
    data = _read(path)
    flat = dict(_flat({k: v for k, v in data.items() if k != "hydra"}))
    swept = _swept(data.get("hydra"))
    axes: dict[str, list[Any]] = {}
    left: list[str] = []
    backends = _backends(data, flat, swept)
    if not backends:
        raise UsageError(f"{path} names no backend; give a configuration of optimum-benchmark")
    compiled = _all(flat, swept, "backend.torch_compile")
    runtimes: list[str] = []
    for backend in backends:
        if backend == "pytorch":
            runtimes += ["inductor" if flag else "eager" for flag in compiled or [False]]
        elif backend in RUNTIMES:
            runtimes.append(RUNTIMES[backend])
        else:
            left.append(f"backend {backend}: no such runtime here")
    axes["runtimes"] = list(dict.fromkeys(runtimes))
    taken = {"backend", "backend.name", "backend.torch_compile", "scenario.name", "launcher.name"}
    for key, name in {
        "backend.model": "models",
        "backend.torch_dtype": "precision",
        "backend.device": "platform",
        "backend.intra_op_num_threads": "threads",
        "backend.cache_implementation": "kv_cache",
        "scenario.generate_kwargs.max_new_tokens": "new_tokens",
        **{f"scenario.input_shapes.{shape}": axis for shape, axis in SHAPES.items()},
    }.items():
        values = [v for v in _all(flat, swept, key) if v is not None]
        taken.add(key)
        if values:
            kept, refused = _values(name, values)
            left += [f"{key} = {value}: {why}" for value, why in refused]
            if kept:
                axes[name] = list(dict.fromkeys(kept))
    if "models" not in axes:
        raise UsageError(f"{path} names no model (backend.model); name one")
    if "new_tokens" in axes:
        axes["phase"] = ["generate"]
    left += [f"{key} = {value}" for key, value in (flat | swept).items() if key not in taken]
    return _written(path, axes, left)


def _read(path: Path) -> dict[str, Any]:
    try:
        import yaml  # type: ignore[import-untyped] # its types are a package of their own
    except ImportError as error:
        raise UsageError("reading YAML needs PyYAML; pip install pyyaml") from error
    try:
        text = path.read_text(encoding="utf-8")
        # A few lines of aliases of aliases unfold to gigabytes.
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, yaml.SafeLoader)):
            raise UsageError(f"{path} has YAML aliases (*name); write them out")
        data = yaml.safe_load(text)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{path} is no YAML: {' '.join(str(error).split())[:200]}") from error
    if not isinstance(data, dict):
        raise UsageError(f"{path} is no configuration of optimum-benchmark; it holds no table")
    return data


def _flat(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in data.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _flat(value, f"{path}.")
        elif path not in SILENT:
            yield path, value


def _swept(hydra: Any) -> dict[str, list[Any]]:
    """Return what ``hydra.sweeper.params`` goes over, as lists."""
    sweeper = hydra.get("sweeper") if isinstance(hydra, Mapping) else None
    params = sweeper.get("params") if isinstance(sweeper, Mapping) else None
    found: dict[str, list[Any]] = {}
    for key, value in (params or {}).items():
        text = str(value)
        inner = text[len("choice(") : -1] if text.startswith("choice(") else text
        found[str(key)] = [_scalar(part.strip()) for part in inner.split(",")]
    return found


def _scalar(text: str) -> Any:
    words = {"true": True, "false": False, "null": None}
    if text.lower() in words:
        return words[text.lower()]
    return int(text) if text.lstrip("-").isdigit() else text


def _all(flat: Mapping[str, Any], swept: Mapping[str, list[Any]], key: str) -> list[Any]:
    """Return every value of a key: those swept over, else the one that is set."""
    if key in swept:
        return swept[key]
    return [flat[key]] if key in flat else []


def _backends(
    data: Mapping[str, Any], flat: Mapping[str, Any], swept: Mapping[str, list[Any]]
) -> list[str]:
    if "backend" in swept:
        return [str(name) for name in swept["backend"]]
    defaults = data.get("defaults")
    chosen = [
        str(entry["backend"])
        for entry in (defaults if isinstance(defaults, list) else [])
        if isinstance(entry, Mapping) and "backend" in entry
    ]
    return [str(flat["backend.name"])] if "backend.name" in flat else chosen


def _values(name: str, values: list[Any]) -> tuple[list[Any], list[tuple[Any, str]]]:
    """Return the values that an axis can have, in the words of a study, and the others."""
    kept: list[Any] = []
    refused: list[tuple[Any, str]] = []
    known = set(models.names())
    for value in values:
        if name == "models":
            own = NAMES.get(str(value), str(value))
            kept.append(own if own in known else str(value))
        elif name == "platform":
            kept.append({"cuda": "cuda:0"}.get(str(value), str(value)))
        elif name == "precision" and value not in PRECISIONS:
            refused.append((value, f"choose from {', '.join(PRECISIONS)}"))
        elif name == "kv_cache" and value not in CACHES:
            refused.append((value, f"choose from {', '.join(CACHES)}"))
        elif name in (*SHAPES.values(), "threads", "new_tokens") and not (
            isinstance(value, int) and value > 0
        ):
            refused.append((value, "no whole number above 0"))
        else:
            kept.append(value)
    return kept, refused


def _written(path: Path, axes: Mapping[str, list[Any]], left: list[str]) -> str:
    lines = [f"# From {_comment(path.name)}, a configuration of optimum-benchmark."]
    if left:
        lines += ["# Not carried over:", *(f"#   {_comment(text)}" for text in left)]
    lines += ["", "[study]", f"name = {_quoted(path.stem)}", "", "[grid]"]
    for name, values in axes.items():
        written = ", ".join(_quoted(v) if isinstance(v, str) else str(v) for v in values)
        lines.append(f"{name} = [{written}]")
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    """Return text as a TOML string; JSON's escapes are TOML's."""
    return json.dumps(text)


def _comment(text: str) -> str:
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())[:200]
