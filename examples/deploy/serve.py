"""An HTTP endpoint: POST /predict takes arrays by name as .npz and returns .npz.

DEPLOYMENT=deploy uvicorn serve:app               what optimize delivered
MODULE=models:encoder uvicorn serve:app           the module itself, to compare
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


def load() -> Any:
    """Return a callable that takes arrays by name."""
    if folder := os.environ.get("DEPLOYMENT"):
        import frameworktax

        return frameworktax.load(folder)
    import torch

    torch.set_num_threads(1)
    name, _, function = os.environ["MODULE"].partition(":")
    module = getattr(importlib.import_module(name), function)()[0].eval()

    def call(**arrays: np.ndarray) -> Any:
        with torch.inference_mode():
            return module(**{name: torch.from_numpy(array) for name, array in arrays.items()})

    return call


model = load()


def answer(body: bytes) -> bytes:
    """Run the model on arrays as .npz, and return its outputs as .npz."""
    with np.load(io.BytesIO(body), allow_pickle=False) as arrays:
        made = model(**dict(arrays))
    outputs = made if isinstance(made, Mapping) else {"output": made}
    file = io.BytesIO()
    np.savez(file, **{name: np.asarray(value) for name, value in outputs.items()})
    return file.getvalue()


async def predict(request: Request) -> Response:
    """Answer one request; the model runs in a thread, so that others are read meanwhile."""
    return Response(await run_in_threadpool(answer, await request.body()))


app = Starlette(routes=[Route("/predict", predict, methods=["POST"])])
