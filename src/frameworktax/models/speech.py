"""Speech models: transformers' own classes on raw audio at 16 kHz, or mel frames for Whisper.

Sizes are those of the checkpoints on the Hugging Face hub that each function names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from frameworktax.models.base import Model, integers, model_of, normal, wide
from frameworktax.models.language import BASE, COMMON, Shape, make, scaled
from frameworktax.models.registry import length_of

if TYPE_CHECKING:
    from frameworktax.records import Workload

TWIN_LENGTH = 2_000
"""Samples of audio."""
CHANNELS = 512
TEXT_TOKENS = 16
FRAMES, TWIN_FRAMES = 3_000, 8
"""Mel frames of 30 s, which Whisper's encoder always takes: shorter audio is padded."""
RAW = {"wav2vec2": "Wav2Vec2", "hubert": "Hubert", "wavlm": "WavLM"}
"""facebook/wav2vec2-base, facebook/hubert-base-ls960, microsoft/wavlm-base: stems of classes."""
ENCODER = ("encoder_layers", "", "encoder_attention_heads", "encoder_ffn_dim")


def build(name: str, workload: Workload) -> Model:
    """Build a speech model in float32 on the CPU."""
    if name == "whisper-encoder":
        return _whisper(workload)
    length = min(length_of(workload), TWIN_LENGTH) if workload.twin else length_of(workload)
    # Two for the twin: on one channel some layouts coincide and operators change.
    shape = scaled(BASE, workload, least_head=2)
    channels = 2 if workload.twin else wide(CHANNELS, workload)
    common = {
        "conv_dim": [channels] * 7,
        # The groups of the positional convolution: 16, or as many as divide the width.
        "num_conv_pos_embedding_groups": max(g for g in range(1, 17) if shape.hidden % g == 0),
    }
    named = {"input_values": normal(length)}
    if name in RAW:
        settings = common | shape.named(COMMON)
        module = make(name, f"{RAW[name]}Config", f"{RAW[name]}Model", **settings)
    else:
        module = _speecht5(shape, common)
        named["decoder_input_ids"] = integers(int(module.config.vocab_size), TEXT_TOKENS)
    return model_of(module, named=named)


def _speecht5(shape: Shape, common: dict[str, Any]) -> Any:
    """microsoft/speecht5_asr: one pass of encoder and decoder, with the text given."""
    return make(
        "speecht5",
        "SpeechT5Config",
        "SpeechT5ForSpeechToText",
        vocab_size=81,
        hidden_size=shape.hidden,
        decoder_layers=max(1, shape.layers // 2),
        decoder_attention_heads=shape.heads,
        decoder_ffn_dim=shape.inner,
        use_cache=False,
        **shape.named(ENCODER),
        **common,
    )


def _whisper(workload: Workload) -> Model:
    """openai/whisper-base, its encoder."""
    shape = scaled(Shape(6, 512, 8, 2048), workload)
    frames = TWIN_FRAMES if workload.twin else FRAMES
    module = make(
        "whisper",
        "WhisperConfig",
        "WhisperEncoder",
        d_model=shape.hidden,
        max_source_positions=frames // 2,
        **shape.named(ENCODER),
    )
    mels = int(module.config.num_mel_bins)
    return model_of(module, named={"input_features": normal(mels, frames)})
