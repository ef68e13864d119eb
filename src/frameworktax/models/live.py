"""A module that lives in the caller's Python, measured in processes of their own.

It travels as a file written with cloudpickle by the process that holds it and read only by the
processes that one starts; no other pickle is ever read.
"""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from frameworktax.models import torchvision_operators
from frameworktax.models.base import Model
from frameworktax.models.place import finish
from frameworktax.models.ready_made import Live
from frameworktax.models.user import as_inputs, wrap

if TYPE_CHECKING:
    from frameworktax.records import Workload


def send(live: Live, path: Path) -> None:
    """Write a module and its example inputs for the measuring processes.

    Raises:
        Exception: whatever pickling raises; the caller then measures in place.
    """
    import cloudpickle

    with path.open("xb") as file:
        path.chmod(0o600)
        # What can be imported travels by name: the other side must look where this one looks.
        cloudpickle.dump(sys.path, file)
        cloudpickle.dump(live, file)


def build_live(live: Any, workload: Workload, device: str) -> Model:
    """Return a sent module (a path) or one held in this process (``Live``) as a model.

    Raises:
        UserModelError: the inputs are no tensor, tuple, list or dict, or the batch dimension
            cannot be told.
    """
    torchvision_operators.declare()  # unpickling imports whatever the module is made of
    if isinstance(live, str):
        import pickle

        with Path(live).open("rb") as file:
            sys.path.extend(p for p in pickle.load(file) if p not in sys.path)
            sent = pickle.load(file)
        module = sent.module
    else:
        sent = live
        module = copy.deepcopy(live.module)  # eval() and casting must not reach the caller's own
    inputs = as_inputs(sent.name, sent.inputs)
    model = wrap(sent.name, module, inputs, workload.batch_dim)
    model.notes.extend(sent.notes)
    return finish(model, workload, device)
