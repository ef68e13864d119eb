"""Speech models: transformers' own classes on raw audio at 16 kHz, or mel frames for Whisper.

Sizes are those of the checkpoints on the Hugging Face hub that each function names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from frameworktax.errors import UsageError
from frameworktax.models.base import Inputs, Model
from frameworktax.models.language import Shape, make, scaled
from frameworktax.records import SEED

if TYPE_CHECKING:
    from frameworktax.records import Workload

DEFAULT_LENGTH = 32_000
"""Samples: 2 s at 16 kHz."""
LEAST_LENGTH = 400
"""Samples that the convolutions need for one frame."""
TWIN_LENGTH = 2_000
BASE = Shape(12, 768, 12, 3072)
CHANNELS = 512
TEXT_TOKENS = 16
FRAMES = 3_000
"""Mel frames of 30 s, which Whisper's encoder always takes: shorter audio is padded."""
TWIN_FRAMES = 8


def build(name: str, workload: Workload) -> Model:
    """Build a speech model in float32 on the CPU.

    Raises:
        UsageError: less audio than the first layers need.
    """
    if name == "whisper-encoder":
        return _whisper(workload)
    length = DEFAULT_LENGTH if workload.length is None else workload.length
    if length < LEAST_LENGTH:
        raise UsageError(
            f"{name} takes {LEAST_LENGTH} samples of audio or more (16,000 a second), "
            f"not {length}; choose another --length"
        )
    if workload.twin:
        length = min(length, TWIN_LENGTH)
    # Two for the twin: on one channel some layouts coincide and operators change.
    shape = scaled(BASE, workload, least_head=2)
    channels = 2 if workload.twin else max(1, round(CHANNELS * workload.width))
    module = _speecht5(shape, channels) if name == "speecht5" else _raw(name, shape, channels)

    def inputs(batch: int) -> Inputs:
        import torch

        generator = torch.Generator().manual_seed(SEED)
        audio = torch.randn(batch, length, generator=generator)
        if name != "speecht5":
            return Inputs(kwargs={"input_values": audio})
        vocabulary = int(module.config.vocab_size)
        text = torch.randint(0, vocabulary, (batch, TEXT_TOKENS), generator=generator)
        return Inputs(kwargs={"input_values": audio, "decoder_input_ids": text})

    names = ["input_values"] + (["decoder_input_ids"] if name == "speecht5" else [])
    return Model(module, inputs, {f"kwargs.{n}": 0 for n in names}, has_twin=True)


def _raw(name: str, shape: Shape, channels: int) -> Any:
    """facebook/wav2vec2-base, facebook/hubert-base-ls960, microsoft/wavlm-base."""
    family, stem = {
        "wav2vec2": ("wav2vec2", "Wav2Vec2"),
        "hubert": ("hubert", "Hubert"),
        "wavlm": ("wavlm", "WavLM"),
    }[name]
    return make(
        family,
        f"{stem}Config",
        f"{stem}Model",
        conv_dim=[channels] * 7,
        num_conv_pos_embedding_groups=_groups(shape.hidden),
        **shape.common,
    )


def _groups(hidden: int) -> int:
    """Return the groups of the positional convolution: 16, or as many as divide the width."""
    return max(g for g in range(1, 17) if hidden % g == 0)


def _speecht5(shape: Shape, channels: int) -> Any:
    """microsoft/speecht5_asr: one pass of encoder and decoder, with the text given."""
    return make(
        "speecht5",
        "SpeechT5Config",
        "SpeechT5ForSpeechToText",
        vocab_size=81,
        hidden_size=shape.hidden,
        encoder_layers=shape.layers,
        encoder_attention_heads=shape.heads,
        encoder_ffn_dim=shape.inner,
        decoder_layers=max(1, shape.layers // 2),
        decoder_attention_heads=shape.heads,
        decoder_ffn_dim=shape.inner,
        conv_dim=[channels] * 7,
        num_conv_pos_embedding_groups=_groups(shape.hidden),
        use_cache=False,
    )


def _whisper(workload: Workload) -> Model:
    """openai/whisper-base, its encoder."""
    import torch

    shape = scaled(Shape(6, 512, 8, 2048), workload)
    frames = TWIN_FRAMES if workload.twin else FRAMES
    module = make(
        "whisper",
        "WhisperConfig",
        "WhisperEncoder",
        d_model=shape.hidden,
        encoder_layers=shape.layers,
        encoder_attention_heads=shape.heads,
        encoder_ffn_dim=shape.inner,
        max_source_positions=frames // 2,
    )
    mels = int(module.config.num_mel_bins)

    def inputs(batch: int) -> Inputs:
        generator = torch.Generator().manual_seed(SEED)
        features = torch.randn(batch, mels, frames, generator=generator)
        return Inputs(kwargs={"input_features": features})

    return Model(module, inputs, {"kwargs.input_features": 0}, has_twin=True)
