"""What a module was called with, as a Python file that ``measure`` and ``optimize`` take."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from frameworktax.errors import UsageError
from frameworktax.programs.document import Kind

SCRIPT = frozenset(("__main__", "__mp_main__"))
DRAWN = re.compile(r"torch\.b?float(16|32|64)")
"""Types that torch draws at random: of eight bits it does not."""


HEAD = '"""{} with inputs as in {} of {} calls looked at."""'
"""First line of a file that is written here."""


def is_replaceable(path: Path) -> bool:
    """Return whether nothing is lost where inputs are written: no file, or one of an earlier run.

    Raises:
        UsageError: it cannot be read.
    """
    try:
        with path.open("rb") as file:
            first = file.readline().rstrip()
    except FileNotFoundError:
        return True
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}; name another") from error
    known = re.escape(HEAD).replace(r"\{\}", ".*").encode()
    return not first or re.fullmatch(known, first) is not None


def batch(kind: Kind) -> int | None:
    """Return the first dimension of the first tensor that was given, None without any."""
    shapes = [one["shape"] for one in _leaves(kind.inputs[0][0]) if one.get("shape")]
    return shapes[0][0] if shapes else None


def write(kind: Kind, path: Path, folder: Path) -> list[str]:
    """Write a file with a function ``build``: the module, and inputs as they were seen most.

    Tensors have the shapes and types that were seen. Where values were noted they are in an
    ``.npz`` file beside it, as arrays that are read without pickle.

    Args:
        kind: calls of the module.
        path: of the file.
        folder: has the bytes of values, ``PID.values``.

    Returns:
        What is not as in the program, and has to be filled in or known; empty if nothing is.
    """
    (args, kwargs), count = kind.inputs[0]
    names = kind.construction.get("forward", [])
    said = [
        f"a tensor of {one['left_out']:,} bytes was too large to be kept: drawn at random"
        for one in _leaves([args, kwargs])
        if "left_out" in one
    ]
    given: Any = tuple(args)
    if kwargs or any(map(_is_unknown, args)):
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        if len(args) > len(names):
            said.append(f"the last {len(args) - len(names)} of {len(args)} arguments are left out")
        said += [
            f"{name}, of type {one['type']}, is left out"
            for name, one in given.items()
            if _is_unknown(one)
        ]
        given = {name: one for name, one in given.items() if not _is_unknown(one)}
    arrays: dict[str, np.ndarray] = {}
    inputs = _source(given, arrays, folder)
    values = path.with_suffix(".npz")
    if arrays:
        np.savez(values, **arrays)  # type: ignore[arg-type] # allow_pickle is no array of ours
    own = kind.import_name.partition(":")[0]
    made = kind.construction.get("make", f"{kind.import_name.replace(':', '.')}()")
    modules = set(kind.construction.get("imports", [own]))
    said += [f"fill in {name}" for name in kind.construction.get("missing", ["its arguments"])]
    script = Path(kind.construction.get("script") or "")
    is_script = not SCRIPT.isdisjoint(modules)
    if is_script:
        program = re.sub(r"\W|^(?=\d|$)", "_", script.stem)
        modules = modules - SCRIPT | {program}
        for name in SCRIPT:
            made = made.replace(f"{name}.", f"{program}.")
        if not script.is_file():
            said.append(f"put the program's classes into a file {program}.py")
        elif script.name != f"{program}.py":
            said.append(f"rename {script.name} to {program}.py, so that it can be imported")
        if script.is_file() and b"__name__" not in script.read_bytes():
            said.append(f"importing {program} runs it: put what runs under __name__ == '__main__'")
    if "<locals>" in made:
        said.append(f"make the module here: {made} is defined in a function")
        made = "None"
    lines = [*(f"import {name}" for name in sorted(modules)), *(f"# {one}" for one in said)]
    lines.append(f"module = {made}")
    if "parameters" in kind.construction:
        lines += [
            "parameters = sum(one.numel() for one in module.parameters())",
            f"if parameters != {kind.construction['parameters']}:",
            "    raise ValueError(",
            '        f"the module has {parameters} parameters, the one that ran "',
            f'        "{kind.construction["parameters"]}: give it the same arguments here"',
            "    )",
        ]
    if arrays:
        load = 'values = numpy.load(Path(__file__).with_suffix(".npz"), allow_pickle=False)'
        lines.append(load)
    lines.append(f"return module.eval(), {inputs}")
    of = sum(number for _, number in kind.inputs)  # calls left out and other threads' included
    head = [HEAD.format(kind.name, count, of), ""]
    head += ["import sys", "from pathlib import Path", "", "import numpy", "import torch"]
    if is_script:
        head += ["", f"sys.path.insert(0, {str(script.parent.resolve())!r})"]
    text = "\n".join(head) + "\n\n\ndef build():\n"
    text += textwrap.indent("\n".join(lines) + "\n", "    ")
    path.write_text(text, encoding="utf-8")
    return said


def _is_unknown(value: Any) -> bool:
    """Return whether something has no source: an object of which only the type is known."""
    return isinstance(value, dict) and set(value) == {"type"}


def _is_leaf(value: Any) -> bool:
    """Return whether this is what is known of a tensor or object, and not a dict of the program."""
    if not isinstance(value, dict):
        return False
    shaped = isinstance(value.get("shape"), list) and isinstance(value.get("dtype"), str)
    return shaped or isinstance(value.get("type"), str)


def _leaves(value: Any) -> Iterator[dict[str, Any]]:
    if _is_leaf(value):
        yield value
    elif isinstance(value, dict | list | tuple):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _leaves(one)


def _source(value: Any, arrays: dict[str, np.ndarray], folder: Path) -> str:
    """Return source for a value; ``arrays`` gets what was kept of tensors."""
    if _is_leaf(value):
        return _leaf(value, arrays, folder)
    if isinstance(value, dict):
        items = (f"{k!r}: {_source(v, arrays, folder)}" for k, v in value.items())
        return "{" + ", ".join(items) + "}"
    if isinstance(value, tuple):
        return "(" + "".join(f"{_source(one, arrays, folder)}, " for one in value) + ")"
    if isinstance(value, list):
        return "[" + ", ".join(_source(one, arrays, folder) for one in value) + "]"
    return repr(value)


def _leaf(value: Mapping[str, Any], arrays: dict[str, np.ndarray], folder: Path) -> str:
    if "type" in value:
        known = value.get("value", f"put a value of type {value['type']} here")
        if isinstance(known, float) and not math.isfinite(known):
            return f'float("{known}")'
        return repr(known)
    shape, dtype = value["shape"], value["dtype"]
    if "kept" not in value:
        return f"torch.{'randn' if DRAWN.fullmatch(dtype) else 'ones'}({shape}, dtype={dtype})"
    pid, at, size = value["kept"]
    kind = _numpy_type(dtype, size // max(1, math.prod(shape)))  # an empty tensor has no elements
    name = str(len(arrays))
    data = np.fromfile(folder / f"{pid}.values", np.uint8, size, offset=at)
    arrays[name] = data.view(kind).reshape(shape)
    view = "" if kind.name == dtype.removeprefix("torch.") else f".view({dtype})"
    return f'torch.from_numpy(values["{name}"]){view}'


def _numpy_type(dtype: str, element_bytes: int) -> np.dtype[Any]:
    """Return numpy's own type; integers for bfloat16 and others, which files cannot hold."""
    try:
        found = np.dtype(dtype.removeprefix("torch."))
    except TypeError:
        pass
    else:
        if found.isbuiltin == 1:  # else a package has registered it
            return found
    return np.dtype(f"i{element_bytes or 1}")
