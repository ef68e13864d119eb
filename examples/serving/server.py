"""Serves the encoder over HTTP: POST /encode {"texts": [...]}, GET /metrics.

python server.py --port 8000
"""

from __future__ import annotations

import argparse
import socket
from contextlib import asynccontextmanager

import torch
import uvicorn
from model import Config, Encoder, tokens_of
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

import frameworktax as ft


def app(config: Config, sample: float) -> Starlette:
    encoder = Encoder(config)
    watch = ft.watch(encoder, name="encoder", sample=sample)

    def encoded(texts: list[str]) -> list[list[float]]:
        with torch.inference_mode():
            return encoder(tokens_of(texts, config)).tolist()

    async def encode(request: Request) -> Response:
        texts = (await request.json())["texts"]
        return JSONResponse(await run_in_threadpool(encoded, texts))

    def metrics(request: Request) -> Response:
        watch.flush()  # up to this request, not to the last export
        return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)

    @asynccontextmanager
    async def lifespan(app: Starlette):
        with watch:
            yield

    routes = [Route("/encode", encode, methods=["POST"]), Route("/metrics", metrics)]
    return Starlette(routes=routes, lifespan=lifespan)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--port", type=int, default=8000, help="0 for a free one")
    parser.add_argument("--pooling", choices=["matrix", "loop"], default="matrix")
    parser.add_argument("--sample", type=float, default=0.01, help="share of calls sampled")
    given = parser.parse_args()
    torch.set_num_threads(1)  # requests run side by side
    with socket.create_server(("127.0.0.1", given.port)) as listening:
        print(f"http://127.0.0.1:{listening.getsockname()[1]}", flush=True)
        config = uvicorn.Config(app(Config(pooling=given.pooling), given.sample), log_level="error")
        uvicorn.Server(config).run(sockets=[listening])


if __name__ == "__main__":
    main()
