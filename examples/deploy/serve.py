"""An HTTP endpoint: POST /predict takes arrays by name as .npz and returns .npz.

uvicorn serve:app                             what optimize delivered into deploy
MODULE=models.py:encoder uvicorn serve:app    the module itself, to compare
"""

from __future__ import annotations

import importlib
import io
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from frameworktax.errors import DeploymentError


def load() -> Any:
    """Return a callable that takes arrays by name."""
    file, _, function = os.environ.get("MODULE", "").partition(":")
    if not file:
        import frameworktax

        return frameworktax.load(os.environ.get("DEPLOYMENT", "deploy"))
    import torch

    torch.set_num_threads(1)
    module = getattr(importlib.import_module(file.removesuffix(".py")), function)()[0].eval()

    def call(**arrays: np.ndarray) -> Any:
        with torch.inference_mode():
            return module(**{name: torch.from_numpy(array) for name, array in arrays.items()})

    return call


model = load()


def answer(arrays: Mapping[str, np.ndarray]) -> bytes:
    """Run the model on arrays, and return its outputs as .npz."""
    made = model(**arrays)
    outputs = made if isinstance(made, Mapping) else {"output": made}
    file = io.BytesIO()
    np.savez(file, **{name: np.asarray(value) for name, value in outputs.items()})
    return file.getvalue()


async def predict(request: Request) -> Response:
    """Answer one request; the model runs in a thread, so that others are read meanwhile.

    Arrays are read in this one: Python 3.11 may fail to parse in two at once (cpython#106905).
    """
    with np.load(io.BytesIO(await request.body()), allow_pickle=False) as arrays:
        given = dict(arrays)
    try:
        return Response(await run_in_threadpool(answer, given))
    except DeploymentError as error:  # other names, types or sizes than it was made for
        return Response(str(error), 400)


app = Starlette(routes=[Route("/predict", predict, methods=["POST"])])
