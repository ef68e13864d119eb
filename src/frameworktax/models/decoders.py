"""Causal language models: forward without a head, or with one for greedy decoding.

Sizes are those of the checkpoints on the Hugging Face hub that each function names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from frameworktax.models.language import Shape, make, model_of, scaled

if TYPE_CHECKING:
    from frameworktax.models.base import Model
    from frameworktax.records import Workload

POSITIONS = {"gpt2": 1024, "smollm2": 8192, "qwen3": 40_960, "moe": 4096}


def build(name: str, workload: Workload) -> Model:
    """Build a decoder in float32 on the CPU.

    ``phase = "generate"`` builds the class with a language-model head, whose weights are the
    embedding's where the checkpoint ties them.

    Raises:
        UsageError: the length does not fit the model's positions.
    """
    generate = workload.phase == "generate"
    settings = _FAMILIES[name](workload)
    family, config, plain, causal = _CLASSES[name]
    module = make(family, config, causal if generate else plain, use_cache=generate, **settings)
    return model_of(module, workload, positions=POSITIONS[name])


def _gpt2(workload: Workload) -> dict[str, Any]:
    shape = scaled(Shape(12, 768, 12, 3072), workload)
    return {
        "vocab_size": 50257,
        "n_positions": 1024,
        "n_embd": shape.hidden,
        "n_layer": shape.layers,
        "n_head": shape.heads,
        "n_inner": shape.inner,
    }


def _smollm2(workload: Workload) -> dict[str, Any]:
    """HuggingFaceTB/SmolLM2-135M."""
    shape = scaled(Shape(30, 576, 9, 1536), workload, least_head=2)
    return {
        "vocab_size": 49152,
        "num_key_value_heads": 3,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": True,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 100_000.0},
        **shape.common,
    }


def _qwen3(workload: Workload) -> dict[str, Any]:
    """Qwen/Qwen3-0.6B: its 16 heads together are twice as wide as the layer."""
    shape = scaled(Shape(28, 2048, 16, 6144), workload, least_head=2)
    return {
        "vocab_size": 151_936,
        "num_key_value_heads": 8,
        "max_position_embeddings": 40_960,
        "tie_word_embeddings": True,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0},
        **shape.common,
        "head_dim": shape.hidden // shape.heads,
        "hidden_size": shape.hidden // 2,
        "intermediate_size": shape.inner // 2,
    }


def _moe(workload: Workload) -> dict[str, Any]:
    """Mixtral's layer at a size of this project's own: no such checkpoint is small."""
    shape = scaled(Shape(4, 512, 8, 1792), workload, least_head=2)
    return {
        "vocab_size": 32_000,
        "num_key_value_heads": 2,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "max_position_embeddings": 4096,
        **shape.common,
    }


_FAMILIES = {"gpt2": _gpt2, "smollm2": _smollm2, "qwen3": _qwen3, "moe": _moe}
_CLASSES = {
    "gpt2": ("gpt2", "GPT2Config", "GPT2Model", "GPT2LMHeadModel"),
    "smollm2": ("llama", "LlamaConfig", "LlamaModel", "LlamaForCausalLM"),
    "qwen3": ("qwen3", "Qwen3Config", "Qwen3Model", "Qwen3ForCausalLM"),
    "moe": ("mixtral", "MixtralConfig", "MixtralModel", "MixtralForCausalLM"),
}
