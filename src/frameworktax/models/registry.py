"""Every model the project brings, a line each: strings only, so that asking imports no engine."""

from __future__ import annotations

from dataclasses import dataclass

BOTH = ("width", "depth")


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
        min_image_size: fewest pixels a side.
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
    min_image_size: int | None = None
    factors: tuple[str, ...] = BOTH
    generates: bool = False
    extra: str = "torch"
    asks_batch_dim: bool = False
    check: str = ""


def _text(file: str, summary: str, positions: int | None = 512, generates: bool = False) -> Entry:
    return Entry(
        f"frameworktax.models.{file}:build",
        "language",
        summary,
        packages=("torch", "transformers"),
        has_length=True,
        default_length=128,
        max_length=positions,
        generates=generates,
        extra="models",
    )


def _image(
    file: str,
    summary: str,
    size: int = 224,
    least: int = 32,
    factors: tuple[str, ...] = BOTH,
    package: str | None = None,
) -> Entry:
    return Entry(
        f"frameworktax.models.{file}:build",
        "vision",
        summary,
        packages=("torch", package) if package else ("torch",),
        has_image_size=True,
        default_image_size=size,
        min_image_size=least,
        factors=factors,
        extra={"torchvision": "vision", "transformers": "models"}.get(package or "", "torch"),
    )


def _convnet(summary: str, size: int = 224, least: int = 64) -> Entry:
    return _image("convnets", summary, size, least, ("width",), "torchvision")


def _audio(summary: str, length: int | None = 32_000) -> Entry:
    return Entry(
        "frameworktax.models.speech:build",
        "speech",
        summary,
        packages=("torch", "transformers"),
        has_length=length is not None,
        default_length=length,
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
    "bert-tiny": _text("encoders", "BERT encoder, 2 layers, 128 wide, 2 heads"),
    "bert-mini": _text("encoders", "BERT encoder, 4 layers, 256 wide, 4 heads"),
    "bert-small": _text("encoders", "BERT encoder, 4 layers, 512 wide, 8 heads"),
    "bert-medium": _text("encoders", "BERT encoder, 8 layers, 512 wide, 8 heads"),
    "bert-base": _text("encoders", "BERT encoder, 12 layers, 768 wide, 12 heads"),
    "bert-large": _text("encoders", "BERT encoder, 24 layers, 1024 wide, 16 heads"),
    "distilbert": _text("encoders", "DistilBERT encoder, 6 layers, 768 wide, 12 heads"),
    "roberta": _text("encoders", "RoBERTa base encoder, 12 layers, 768 wide"),
    "electra": _text("encoders", "ELECTRA base discriminator, 12 layers, 768 wide"),
    "albert": _text("encoders", "ALBERT base, one layer's weights used 12 times, 768 wide"),
    "deberta": _text("encoders", "DeBERTa base, 12 layers, 768 wide, disentangled attention"),
    "deberta-v2": _text("encoders", "DeBERTa v2 class at v3-base's size, 12 layers, 768 wide"),
    "mobilebert": _text("encoders", "MobileBERT, 24 bottleneck layers, 512 wide outside"),
    "squeezebert": _text("encoders", "SqueezeBERT, 12 layers of grouped convolutions, 768 wide"),
    "modernbert": _text("encoders", "ModernBERT base, 22 layers, 768 wide, local attention", 8192),
    "funnel": _text("sequence_mixers", "Funnel small, 3 blocks of 4 layers that pool, 2 up", None),
    "fnet": _text("sequence_mixers", "FNet base, 12 layers, Fourier transforms for attention"),
    "nystromformer": _text("sequence_mixers", "Nyströmformer, 12 layers, 64 landmarks"),
    "longformer": _text("sequence_mixers", "Longformer base, 12 layers, windows of 512", 4096),
    "bigbird": _text("sequence_mixers", "BigBird RoBERTa base, block-sparse attention", 4096),
    "reformer": _text("sequence_mixers", "Reformer, 6 layers, 256 wide, hashed attention", 524_288),
    "mamba": _text("sequence_mixers", "Mamba 130m, 24 state-space layers, plain torch scan", None),
    "gpt2": _text("decoders", "GPT-2 decoder, 12 layers, 768 wide; no head in forward", 1024, True),
    "smollm2": _text("decoders", "SmolLM2 135M, a Llama decoder, 30 layers, 576 wide", 8192, True),
    "qwen3": _text("decoders", "Qwen3 0.6B decoder, 28 layers, 1024 wide", 40_960, True),
    "moe": _text("decoders", "Mixtral-like decoder, 4 layers, 8 experts, 2 a token", 4096, True),
    "resnet-18": _image("vision", "ResNet, 18 layers, basic blocks, 11.7 M parameters"),
    "resnet-34": _image("vision", "ResNet, 34 layers, basic blocks, 21.8 M parameters"),
    "resnet-50": _image("vision", "ResNet, 50 layers, bottleneck blocks, 25.6 M parameters"),
    "resnet-101": _image("vision", "ResNet, 101 layers, bottleneck blocks, 44.5 M parameters"),
    "resnet-152": _image("vision", "ResNet, 152 layers, bottleneck blocks, 60.2 M parameters"),
    "wide-resnet-50-2": _image("vision", "ResNet-50, inner channels doubled, 68.9 M parameters"),
    "resnext-50": _image("vision", "ResNeXt-50 32x4d, grouped convolutions, 25.0 M parameters"),
    "mobilenet-v2": _image("vision", "MobileNetV2, inverted residuals, 3.5 M parameters"),
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
    "vit-base": _image("image_transformers", "ViT-B/16, 86.6 M parameters", package="torchvision"),
    "deit-base": _image(
        "image_transformers", "DeiT-B/16 distilled, 87.3 M parameters", package="transformers"
    ),
    "swin-tiny": _image(
        "image_transformers", "Swin-T, shifted windows, 28.3 M parameters", package="torchvision"
    ),
    "convnext-tiny": _image(
        "image_transformers", "ConvNeXt-T, 28.6 M parameters", package="torchvision"
    ),
    "poolformer": _image(
        "image_transformers", "PoolFormer-S12, pooling, 11.9 M parameters", package="transformers"
    ),
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
    ),
}
"""Name → entry, in the order of ``list models``: one family after the other."""

PREFIXES: dict[str, Entry] = {
    "torchvision:NAME": Entry(
        "frameworktax.models.torchvision_names:build",
        "any",
        "any of torchvision's models, random weights",
        packages=("torch", "torchvision"),
        has_image_size=True,
        factors=(),
        extra="vision",
    ),
    "timm:NAME": Entry(
        "frameworktax.models.timm_names:build",
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
