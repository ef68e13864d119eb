"""Every model the project brings, a line each: strings only, so that asking imports no engine."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING, TypeVar

from frameworktax.errors import UsageError

if TYPE_CHECKING:
    from frameworktax.records import Workload

BOTH = ("width", "depth")
T = TypeVar("T")


@functools.cache
def _registered(group: str, path: tuple[str, ...]) -> tuple[metadata.EntryPoint, ...]:
    return tuple(metadata.entry_points(group=group))


def entry_points(group: str) -> tuple[metadata.EntryPoint, ...]:
    """Return what installed packages register, read once for a search path: that takes 0.1 s."""
    return _registered(group, tuple(sys.path))


def with_plugins(known: Mapping[str, T], group: str, entry: Callable[[str], T]) -> dict[str, T]:
    """Return what is built in, and what other packages register.

    Args:
        known: name → entry of what is built in.
        group: of entry points, ``frameworktax.models`` or ``frameworktax.runtimes``.
        entry: makes one of ``module:function``.

    Raises:
        UsageError: two packages claim one name.
    """
    found = dict(known)
    for point in entry_points(group=group):
        if point.name in found:
            raise UsageError(
                f"{group.partition('.')[2][:-1]} '{point.name}' is registered twice, the second "
                f"time by {point.value}; uninstall or rename one"
            )
        found[point.name] = entry(point.value)
    return found


@dataclass(frozen=True, slots=True)
class Entry:
    """One registered model.

    Attributes:
        target: ``module:function`` with ``build(name, workload) -> Model``.
        family: what ``list models`` groups by.
        summary: what it is, in a line.
        packages: importable names that must be there.
        has_length: whether ``--length`` means something.
        has_image_size: whether ``--image-size`` does.
        default_length: tokens a sample, or samples of audio.
        default_image_size: pixels a side.
        max_length: most tokens a sample may have, where the model has learned positions.
        min_length: fewest.
        min_image_size: fewest pixels a side.
        image_step: what must divide them.
        factors: which of ``width`` and ``depth`` scale it; a twin needs a width.
        generates: whether it can decode greedily.
        extra: the project's extra that installs ``packages``.
        asks_batch_dim: whether the user may have to say which dimension is the batch.
        check: ``module:function`` that looks at a workload more closely, importing no engine.
    """

    target: str
    family: str
    summary: str
    packages: tuple[str, ...] = ("torch",)
    has_length: bool = False
    has_image_size: bool = False
    default_length: int | None = None
    default_image_size: int | None = None
    max_length: int | None = None
    min_length: int = 1
    min_image_size: int | None = None
    image_step: int = 1
    factors: tuple[str, ...] = BOTH
    generates: bool = False
    extra: str = "torch"
    asks_batch_dim: bool = False
    check: str = ""


def length_of(workload: Workload) -> int:
    """Return the length of a sample as asked for, or its model's own; 0 where it has none."""
    return workload.length or BUILT_IN[workload.model].default_length or 0


def image_size_of(workload: Workload) -> int:
    """Return the pixels a side as asked for, or the model's own; 0 where it takes no image."""
    return workload.image_size or BUILT_IN[workload.model].default_image_size or 0


def _text(summary: str, positions: int | None = 512, generates: bool = False) -> Entry:
    return Entry(
        "frameworktax.models.language:build",
        "language",
        summary,
        packages=("torch", "transformers"),
        has_length=True,
        default_length=128,
        max_length=positions,
        generates=generates,
        extra="models",
    )


_EXTRAS = {"": "torch", "torchvision": "vision", "transformers": "models"}


def _image(
    summary: str,
    size: int = 224,
    least: int = 32,
    *,
    package: str = "",
    factors: tuple[str, ...] = BOTH,
    step: int = 1,
) -> Entry:
    return Entry(
        "frameworktax.models.vision:build",
        "vision",
        summary,
        packages=("torch", package) if package else ("torch",),
        has_image_size=True,
        default_image_size=size,
        min_image_size=least,
        image_step=step,
        factors=factors,
        extra=_EXTRAS[package],
    )


def _convnet(summary: str, size: int = 224, least: int = 64) -> Entry:
    return _image(summary, size, least, package="torchvision", factors=("width",))


def _vit(package: str, summary: str, step: int = 1) -> Entry:
    return _image(summary, package=package, step=step)


def _audio(summary: str, length: int | None = 32_000) -> Entry:
    return Entry(
        "frameworktax.models.speech:build",
        "speech",
        summary,
        packages=("torch", "transformers"),
        has_length=length is not None,
        default_length=length,
        min_length=400,  # samples that the convolutions need for one frame
        extra="models",
    )


def _stack(summary: str, length: int | None = None) -> Entry:
    return Entry(
        "frameworktax.models.synthetic:build",
        "synthetic",
        summary,
        has_length=length is not None,
        default_length=length,
    )


BUILT_IN: dict[str, Entry] = {
    "bert-tiny": _text("BERT encoder, 2 layers, 128 wide, 2 heads"),
    "bert-mini": _text("BERT encoder, 4 layers, 256 wide, 4 heads"),
    "bert-small": _text("BERT encoder, 4 layers, 512 wide, 8 heads"),
    "bert-medium": _text("BERT encoder, 8 layers, 512 wide, 8 heads"),
    "bert-base": _text("BERT encoder, 12 layers, 768 wide, 12 heads"),
    "bert-large": _text("BERT encoder, 24 layers, 1024 wide, 16 heads"),
    "distilbert": _text("DistilBERT encoder, 6 layers, 768 wide, 12 heads"),
    "roberta": _text("RoBERTa base encoder, 12 layers, 768 wide"),
    "electra": _text("ELECTRA base discriminator, 12 layers, 768 wide"),
    "albert": _text("ALBERT base, one layer's weights used 12 times, 768 wide"),
    "deberta": _text("DeBERTa base, 12 layers, 768 wide, disentangled attention"),
    "deberta-v2": _text("DeBERTa v2 class at v3-base's size, 12 layers, 768 wide"),
    "mobilebert": _text("MobileBERT, 24 bottleneck layers, 512 wide outside"),
    "squeezebert": _text("SqueezeBERT, 12 layers of grouped convolutions, 768 wide"),
    "modernbert": _text("ModernBERT base, 22 layers, 768 wide, local attention", 8192),
    "funnel": _text("Funnel small, 3 blocks of 4 layers that pool, 2 up", None),
    "fnet": _text("FNet base, 12 layers, Fourier transforms for attention"),
    "nystromformer": _text("Nyströmformer, 12 layers, 64 landmarks", 510),
    "longformer": _text("Longformer base, 12 layers, windows of 512", 4096),
    "bigbird": _text("BigBird RoBERTa base, block-sparse attention", 4096),
    "reformer": _text("Reformer, 6 layers, 256 wide, hashed attention", 524_288),
    "mamba": _text("Mamba 130m, 24 state-space layers, plain torch scan", None),
    "gpt2": _text("GPT-2 decoder, 12 layers, 768 wide; no head in forward", 1024, True),
    "smollm2": _text("SmolLM2 135M, a Llama decoder, 30 layers, 576 wide", 8192, True),
    "qwen3": _text("Qwen3 0.6B decoder, 28 layers, 1024 wide", 40_960, True),
    "moe": _text("Mixtral-like decoder, 4 layers, 8 experts, 2 a token", 4096, True),
    "resnet-18": _image("ResNet, 18 layers, basic blocks, 11.7 M parameters"),
    "resnet-34": _image("ResNet, 34 layers, basic blocks, 21.8 M parameters"),
    "resnet-50": _image("ResNet, 50 layers, bottleneck blocks, 25.6 M parameters"),
    "resnet-101": _image("ResNet, 101 layers, bottleneck blocks, 44.5 M parameters"),
    "resnet-152": _image("ResNet, 152 layers, bottleneck blocks, 60.2 M parameters"),
    "wide-resnet-50-2": _image("ResNet-50, inner channels doubled, 68.9 M parameters"),
    "resnext-50": _image("ResNeXt-50 32x4d, grouped convolutions, 25.0 M parameters"),
    "mobilenet-v2": _image("MobileNetV2, inverted residuals, 3.5 M parameters"),
    "alexnet": _convnet("AlexNet, 61.1 M parameters"),
    "vgg16": _convnet("VGG-16 without batch norm, 138.4 M parameters"),
    "squeezenet": _convnet("SqueezeNet 1.0, fire modules, 1.2 M parameters"),
    "shufflenet-v2": _convnet("ShuffleNetV2 x1.0, channel shuffles, 2.3 M parameters"),
    "mnasnet": _convnet("MNASNet 1.0, 4.4 M parameters"),
    "efficientnet-b0": _convnet("EfficientNet-B0, squeeze and excitation, 5.3 M parameters"),
    "regnet-y-400mf": _convnet("RegNetY 400 MF, 4.3 M parameters"),
    "densenet-121": _convnet("DenseNet-121, concatenated features, 8.0 M parameters"),
    "googlenet": _convnet("GoogLeNet, inception modules, 6.6 M parameters"),
    "inception-v3": _convnet("Inception v3, 299 pixels a side, 23.8 M parameters", 299, 96),
    "vit-base": _vit("torchvision", "ViT-B/16, 86.6 M parameters", 16),
    "deit-base": _vit("transformers", "DeiT-B/16 distilled, 87.3 M parameters", 16),
    "swin-tiny": _vit("torchvision", "Swin-T, shifted windows, 28.3 M parameters"),
    "convnext-tiny": _vit("torchvision", "ConvNeXt-T, 28.6 M parameters"),
    "poolformer": _vit("transformers", "PoolFormer-S12, pooling, 11.9 M parameters"),
    "wav2vec2": _audio("wav2vec 2.0 base, 12 layers; 2 s of audio at 16 kHz"),
    "hubert": _audio("HuBERT base, 12 layers; 2 s of audio at 16 kHz"),
    "wavlm": _audio("WavLM base, 12 layers, gated positions; 2 s of audio at 16 kHz"),
    "speecht5": _audio("SpeechT5 speech to text, 12 + 6 layers; 2 s of audio, 16 text tokens"),
    "whisper-encoder": _audio("Whisper base's encoder, 6 layers; 3000 mel frames (30 s)", None),
    "mlp": _stack("8 times linear (1024 to 1024) and ReLU"),
    "conv": _stack("8 times 3x3 convolution (64 channels, 32x32) and ReLU"),
    "layernorm": _stack("16 times layer norm, 1024 wide"),
    "attention": _stack("4 times multi-head self-attention, 512 wide, 8 heads", 128),
    "lstm": _stack("2 LSTM layers, 512 wide", 64),
    "rnn": _stack("2 plain recurrent layers (tanh), 512 wide", 64),
    "gnn": Entry(
        "frameworktax.models.graph:build",
        "graph",
        "4 graph convolutions, 128 wide; a graph of 256 nodes and 1024 edges a sample",
    ),
    "recommender": Entry(
        "frameworktax.models.recommender:build",
        "recommender",
        "DLRM-like: 26 embedding bags of 10,000 by 64, feature products, two MLPs",
    ),
    "unet": Entry(
        "frameworktax.models.unet:build",
        "diffusion",
        "one denoising step of DDPM's U-Net for 32x32 images, 35.7 M parameters",
        has_image_size=True,
        default_image_size=32,
        min_image_size=8,
        image_step=8,
    ),
}
"""Name → entry, in the order of ``list models``: one family after the other."""

PREFIXES: dict[str, Entry] = {
    "torchvision:NAME": Entry(
        "frameworktax.models.image_libraries:build_torchvision",
        "any",
        "any of torchvision's models, random weights",
        packages=("torch", "torchvision"),
        has_image_size=True,
        factors=(),
        extra="vision",
    ),
    "timm:NAME": Entry(
        "frameworktax.models.image_libraries:build_timm",
        "any",
        "any of timm's models, random weights",
        packages=("torch", "torchvision", "timm"),
        has_image_size=True,
        factors=(),
        extra="vision",
    ),
    "hf:NAME": Entry(
        "frameworktax.models.hugging_face:build",
        "any",
        "a model type of transformers, a local folder, or a model on the Hugging Face hub",
        packages=("torch", "transformers"),
        has_length=True,
        has_image_size=True,
        factors=(),
        generates=True,
        extra="models",
        check="frameworktax.models.hugging_face:check",
    ),
    "onnx:NAME": Entry(
        "frameworktax.models.onnx_file:build",
        "any",
        "an ONNX file, in the runtimes that take one",
        packages=("torch", "onnx"),
        has_length=True,
        has_image_size=True,
        factors=(),
        extra="onnxruntime",
        asks_batch_dim=True,
        check="frameworktax.models.onnx_file:check",
    ),
}
"""What stands before the colon → entry."""

USER = Entry(
    "frameworktax.models.user:build",
    "your own",
    "file.py:function or package.module:function",
    factors=(),
    generates=True,
    asks_batch_dim=True,
)
