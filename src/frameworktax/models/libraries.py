"""The libraries that models and runtimes are made of: known by name, imported ahead of them.

Importing one takes seconds, and every process that builds a model pays for it. A template
(``measure.template``) imports it once and forks the processes that need it.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from frameworktax.models.torchvision_operators import declare

MODULES: Mapping[str, tuple[str, ...]] = {
    "torch": ("torch",),
    "torchvision": ("torchvision.models",),
    # all but the files of one architecture
    "transformers": ("transformers.modeling_utils", "transformers.modeling_layers"),
    "timm": ("timm",),
    "inductor": ("torch._dynamo", "torch._inductor.compile_fx"),
    "exporter": ("torch._dynamo", "torch.onnx", "onnxscript"),
}
"""Library, or a part of torch that torch does not import by itself → the modules whose import
brings most of it; in the order of importing."""
ASKS_FOR_DEVICES = ("inductor",)
"""These count the devices as they are imported, after which no fork can use one: a process that
measures on a device imports them itself (torch._inductor.runtime.benchmarking)."""
DEVICES = ("/dev/nvidia", "/dev/kfd", "/dev/dri")


def libraries_in(packages: Iterable[str]) -> tuple[str, ...]:
    """Return those of ``packages`` that are imported ahead, in the order of importing."""
    wanted = set(packages)
    return tuple(name for name in MODULES if name in wanted)


def not_installed(packages: Iterable[str], extra: str) -> str | None:
    """Return which importable packages are missing and what installs them, None if none is."""
    absent = [name for name in packages if importlib.util.find_spec(name) is None]
    if not absent:
        return None
    install = f"'frameworktax[{extra}]'" if extra else " ".join(absent)
    return f"{', '.join(absent)} not installed; pip install {install}"


def import_library(name: str) -> None:
    """Import a library as building a model does.

    Raises:
        Exception: whatever importing it raises.
    """
    if name != "torch":
        declare()
    for module in MODULES[name]:
        with contextlib.suppress(ModuleNotFoundError):  # what needs it says so
            importlib.import_module(module)


def begun() -> tuple[int, int]:
    """Return how many threads this process has, and how many processes it has started and left."""
    tasks = list(Path("/proc/self/task").iterdir())
    children = 0
    for task in tasks:
        with contextlib.suppress(OSError):  # it ended meanwhile, or the kernel keeps no such list
            children += len((task / "children").read_text().split())
    return len(tasks), children


def uses_device() -> bool:
    """Return whether this process has begun to use a device: no fork of it could use one."""
    torch = sys.modules.get("torch")
    if torch is not None and (torch.cuda.is_initialized() or torch.cuda._is_in_bad_fork()):
        return True
    for entry in Path("/proc/self/fd").iterdir():
        try:
            opened = str(entry.readlink())
        except OSError:  # the descriptor that this loop reads the folder with
            continue
        if opened.startswith(DEVICES):
            return True
    return False
