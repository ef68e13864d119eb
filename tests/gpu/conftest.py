"""Tests in this folder need a CUDA device; elsewhere they are skipped, each with the reason."""

from pathlib import Path

import pytest

from frameworktax.runtimes.cuda_graph import missing_gpu

HERE = Path(__file__).parent


def unusable():
    reason = missing_gpu()
    if reason is not None:
        return reason
    try:
        import torch
    except ImportError:
        return "torch is not installed"
    return None if torch.cuda.is_available() else "torch finds no CUDA device"


def pytest_collection_modifyitems(items):
    mine = [item for item in items if HERE in item.path.parents]
    reason = unusable() if mine else None
    for item in mine:
        item.add_marker(pytest.mark.gpu)
        if reason is not None:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def gpu():
    from frameworktax.attribution.torch_device import TorchDevice

    return TorchDevice("cuda:0")
