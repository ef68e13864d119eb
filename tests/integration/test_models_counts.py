"""Parameters of every named model against what was published; shapes only, no weights are made."""

from __future__ import annotations

import importlib.util

import pytest

from frameworktax import models
from frameworktax.records import Workload

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

M = 1_000_000
HUB = "the checkpoint on the Hugging Face hub, without heads"
DOCS = "torchvision's documentation, classifier included"
TURC = "arXiv:1908.08962, table 1"

PUBLISHED = {
    # name: (count, rounded to, where it stands)
    "bert-tiny": (4_400_000, M // 10, TURC),
    "bert-mini": (11_200_000, M // 10, TURC),
    "bert-small": (28_800_000, M // 10, TURC),
    "bert-medium": (41_400_000, M // 10, TURC),
    "bert-base": (109_482_240, 1, HUB + ": bert-base-uncased"),
    "bert-large": (335_141_888, 1, HUB + ": bert-large-uncased"),
    "distilbert": (66_362_880, 1, HUB + ": distilbert-base-uncased"),
    "roberta": (124_645_632, 1, HUB + ": roberta-base"),
    "electra": (110 * M, 10 * M, "arXiv:2003.10555, table 1, base; 109 without the head"),
    "albert": (12 * M, M, "arXiv:1909.11942, table 1, base"),
    "deberta": (138_601_728, 1, HUB + ": microsoft/deberta-base"),
    "deberta-v2": (184 * M, M, "microsoft/deberta-v3-base: 86 M and 98 M in the embedding"),
    "mobilebert": (24_581_888, 1, HUB + ": google/mobilebert-uncased"),
    "squeezebert": (51_100_000, M // 10, "arXiv:2006.11316, table 2"),
    "modernbert": (149 * M, M, "arXiv:2412.13663: base, 149 M"),
    "funnel": (131 * M, M, "transformers' list of checkpoints: funnel-transformer/small, 130.97"),
    "fnet": (83 * M, M, "arXiv:2105.03824, table 1: base, 83 M"),
    "nystromformer": (110 * M, 10 * M, "arXiv:2102.03902: as many as BERT base"),
    "longformer": (149 * M, M, "transformers' list of checkpoints: longformer-base-4096"),
    "bigbird": (127 * M, M, "arXiv:2007.14062, table 8: base ITC"),
    "reformer": (3 * M, M, "transformers' list of checkpoints: reformer-crime-and-punishment"),
    "mamba": (129_135_360, 1, HUB + ": state-spaces/mamba-130m-hf"),
    "gpt2": (124_439_808, 1, HUB + ": gpt2"),
    "smollm2": (134_515_008, 1, HUB + ": HuggingFaceTB/SmolLM2-135M, head tied"),
    "qwen3": (596_049_920, 1, HUB + ": Qwen/Qwen3-0.6B, head tied"),
    "resnet-18": (11_689_512, 1, DOCS),
    "resnet-34": (21_797_672, 1, DOCS),
    "resnet-50": (25_557_032, 1, DOCS),
    "resnet-101": (44_549_160, 1, DOCS),
    "resnet-152": (60_192_808, 1, DOCS),
    "wide-resnet-50-2": (68_883_240, 1, DOCS),
    "resnext-50": (25_028_904, 1, DOCS),
    "mobilenet-v2": (3_504_872, 1, DOCS),
    "alexnet": (61_100_840, 1, DOCS),
    "vgg16": (138_357_544, 1, DOCS),
    "squeezenet": (1_248_424, 1, DOCS),
    "shufflenet-v2": (2_278_604, 1, DOCS),
    "mnasnet": (4_383_312, 1, DOCS),
    "efficientnet-b0": (5_288_548, 1, DOCS),
    "regnet-y-400mf": (4_344_144, 1, DOCS),
    "densenet-121": (7_978_856, 1, DOCS),
    "googlenet": (6_624_904, 1, DOCS),
    "vit-base": (86_567_656, 1, DOCS),
    "swin-tiny": (28_288_354, 1, DOCS),
    "convnext-tiny": (28_589_128, 1, DOCS),
    "deit-base": (87 * M, M, "arXiv:2012.12877, table 5: distilled, 87 M"),
    "poolformer": (12 * M, M, "arXiv:2111.11418, table 2: S12, 12 M"),
    "unet": (35_700_000, M // 10, "arXiv:2006.11239, appendix B: CIFAR10 model, 35.7 M"),
}
"""Without heads unless said otherwise."""


def speecht5() -> int:
    """arXiv:2110.07205, section 3: 12 and 6 layers of 768, and wav2vec 2.0's convolutions."""
    width, inner, head, frame = 768, 3072, 64, 512
    norm, attention = 2 * width, 4 * (width * width + width)
    feed = 2 * width * inner + inner + width
    encoder = 12 * (attention + feed + 2 * norm) + norm + 320 * head  # relative positions
    decoder = 6 * (2 * attention + feed + 3 * norm)
    convolutions = frame * 10 + 4 * frame * frame * 3 + 2 * frame * frame * 2 + 2 * frame
    projection = 2 * frame + frame * width + width
    positions = width * (width // 16) * 128 + 128 + width
    return encoder + decoder + convolutions + projection + positions + width + 81 * width


def moe() -> int:
    """Mixtral's layer: grouped-query attention of 8 heads on 2, 8 experts of three maps, norms."""
    width, inner, vocabulary = 512, 1792, 32_000
    attention = 2 * width * width + 2 * width * width // 4
    experts = 8 * 3 * width * inner + 8 * width
    return 4 * (attention + experts + 2 * width) + vocabulary * width + width


def recommender() -> int:
    """26 tables of 10,000 by 64; MLPs 13-512-256-64 and 64 + 27 * 26 / 2 to 512-256-1."""
    maps = [(13, 512), (512, 256), (256, 64), (64 + 351, 512), (512, 256), (256, 1)]
    return 26 * 10_000 * 64 + sum((a + 1) * b for a, b in maps)


COMPUTED = {
    "speecht5": speecht5(),
    "moe": moe(),
    "recommender": recommender(),
    "mlp": 8 * 1024 * 1025,
    "conv": 8 * 64 * (64 * 9 + 1),
    "layernorm": 16 * 2 * 1024,
    "attention": 4 * (4 * 512 * 513 + 2 * 512),
    "lstm": 2 * 4 * 2 * 512 * 513,
    "rnn": 2 * 2 * 512 * 513,
    "gnn": 4 * 128 * 129,
}
COMPUTED |= {
    name: entry.row["parameters"]
    for name, entry in models.BUILT_IN.items()
    if "parameters" in entry.row
}
"""Of this project's own sizes, or published nowhere: counted by hand, here or in the registry."""

WITH_HEADS = {"wav2vec2", "hubert", "wavlm", "whisper-encoder", "inception-v3"}
"""Published only as part of something larger: tests of their own, below."""


@pytest.fixture(scope="module", autouse=True)
def no_values():
    """Draw no weights where a model is made on the CPU, as torchvision's are: they take seconds."""
    from frameworktax.models import vision

    with pytest.MonkeyPatch.context() as patch:
        for name in ("uniform_", "normal_"):
            patch.setattr(torch.Tensor, name, lambda self, *_, **__: self)
        # It draws until all are within its bounds.
        patch.setattr(torch.nn.init, "trunc_normal_", lambda tensor, *_, **__: tensor)
        patch.setattr(vision, "calibrate", lambda module, inputs: None)
        yield


def count(module) -> int:
    return sum(p.numel() for p in module.parameters())


def parameters(name: str) -> int:
    missing = next(r["missing"] for r in models.describe_names() if r["name"] == name)
    if missing and "torchvision" in missing:
        pytest.skip(missing)
    return count(models.build(Workload(model=name), "meta").module)


def test_every_name_has_a_count() -> None:
    groups = [set(PUBLISHED), set(COMPUTED), WITH_HEADS]
    assert set.union(*groups) == set(models.BUILT_IN)
    assert sum(map(len, groups)) == len(models.BUILT_IN)


@pytest.mark.parametrize("name", PUBLISHED)
def test_published(name: str) -> None:
    published, rounding, source = PUBLISHED[name]
    ours = parameters(name)
    assert round(ours / rounding) * rounding == published, f"{ours:,} here, {source}"


@pytest.mark.parametrize("name", COMPUTED)
def test_counted_by_hand(name: str) -> None:
    assert parameters(name) == COMPUTED[name]


@pytest.mark.parametrize(
    ("name", "stem", "head", "published"),
    [
        # Two codebooks of 320 by 128, the map to them, and two projections to 256.
        ("wav2vec2", "Wav2Vec2", 2 * 320 * 128 + 513 * 640 + 257 * 256 + 769 * 256, 95_044_608),
        # arXiv:2106.07447, section IV-C (95 M) and arXiv:2110.13900, table 1 (94.70 M): the map to
        # 256 and the embeddings of 504 classes are theirs, the models here have none.
        ("hubert", "Hubert", 769 * 256 + 504 * 256, 94_700_000),
        ("wavlm", "WavLM", 769 * 256 + 504 * 256, 94_700_000),
    ],
)
def test_speech_with_the_heads_it_was_trained_with(name, stem, head, published) -> None:
    rounding = 1 if published % 10_000 else M // 10
    assert round((parameters(name) + head) / rounding) * rounding == published


def test_whisper_with_its_decoder() -> None:
    """openai/whisper-base on the hub holds 72,593,920; the decoder is counted by hand."""
    width, inner = 512, 2048
    attention = 4 * width * width + 3 * width  # the key has no bias
    layer = 2 * attention + 2 * width * inner + inner + width + 3 * 2 * width
    decoder = 6 * layer + 51_865 * width + 448 * width + 2 * width
    assert parameters("whisper-encoder") + decoder == 72_593_920


def test_inception_with_its_auxiliary_classifier() -> None:
    """torchvision's documentation counts the classifier that only training runs: 27,161,264."""
    norms = 2 * (128 + 768)
    head = 768 * 128 + 128 * 768 * 5 * 5 + norms + 769 * 1000
    assert parameters("inception-v3") + head == 27_161_264


@pytest.mark.skipif(importlib.util.find_spec("torchvision") is None, reason="needs torchvision")
def test_torchvision_agrees_with_its_documentation() -> None:
    """The documented counts above are those that the installed torchvision records."""
    from frameworktax.models.torchvision_operators import declare

    declare()
    from torchvision.models import get_model_weights

    for name, entry in models.BUILT_IN.items():
        if name in PUBLISHED and "network" in entry.row:
            recorded = get_model_weights(entry.row["network"]).DEFAULT.meta["num_params"]
            assert recorded == PUBLISHED[name][0], name
