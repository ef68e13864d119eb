"""Pipelines and sentence encoders are taken as they are; the model in them is measured."""

import pytest

import frameworktax as ft
from frameworktax import api, runtimes
from frameworktax.errors import UsageError, UserModelError
from frameworktax.models import torchvision_operators
from frameworktax.models.user import build_live, unpack
from frameworktax.records import SEED
from frameworktax.runtimes.base import Target
from frameworktax.runtimes.torch_common import to_arrays

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
torchvision_operators.declare()  # this torch has none of torchvision's own

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "where", "does", "the", "time", "go", "?"]
SIZES = {
    "vocab_size": len(WORDS),
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "max_position_embeddings": 16,
}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    file = tmp_path_factory.mktemp("words") / "vocab.txt"
    file.write_text("\n".join(WORDS))
    return transformers.BertTokenizer(str(file))


def pipeline(task, tokenizer, kind="BertForSequenceClassification"):
    torch.manual_seed(SEED)
    model = getattr(transformers, kind)(transformers.BertConfig(**SIZES)).eval()
    return transformers.pipeline(task, model=model, tokenizer=tokenizer, device="cpu")


def test_a_pipeline_gives_its_model_and_what_it_calls_it_with(tokenizer):
    made = pipeline("text-classification", tokenizer)
    live = unpack(made, "where does the time go ?")
    assert live.module is made.model
    assert live.inputs["input_ids"].tolist() == [[2, 5, 6, 7, 8, 9, 10, 3]]
    assert set(live.inputs) >= {"input_ids", "attention_mask"}
    ((code, text),) = live.notes
    assert code == "model-alone"
    assert "text-classification" in text
    with torch.no_grad():
        scores = made.model(**live.inputs).logits.softmax(-1)[0]
    answers = made("where does the time go ?", top_k=None)
    assert {one["label"]: one["score"] for one in answers} == {
        made.model.config.id2label[i]: pytest.approx(score)
        for i, score in enumerate(scores.tolist())
    }
    assert not made.model._forward_pre_hooks  # the caller's own is as it was


def test_a_list_is_one_batch_padded_as_the_pipeline_does(tokenizer):
    live = unpack(pipeline("text-classification", tokenizer), ["the time", "where does it go ?"])
    assert live.inputs["input_ids"].shape[0] == 2
    assert live.inputs["attention_mask"].tolist()[0][-1] == 0


def test_of_several_passes_the_first_is_measured_and_a_note_says_so(tokenizer):
    made = pipeline("token-classification", tokenizer, "BertForTokenClassification")
    live = unpack(made, "the time")
    assert live.inputs["input_ids"].shape == (1, 4)
    zero_shot = transformers.pipeline(
        "zero-shot-classification",
        model=pipeline("text-classification", tokenizer).model,
        tokenizer=tokenizer,
        device="cpu",
        candidate_labels=["time", "the", "go"],
    )
    live = unpack(zero_shot, "the time")
    assert live.inputs["input_ids"].shape[0] == 1
    assert "first of 3 " in live.notes[0][1]


def test_a_pipeline_that_generates_gives_its_prompt(tokenizer):
    ends = {"bos_token_id": 2, "eos_token_id": 3}
    sizes = {"vocab_size": len(WORDS), "n_embd": 16, "n_layer": 1, "n_head": 2}
    config = transformers.GPT2Config(**sizes, **ends)
    model = transformers.GPT2LMHeadModel(config).eval()
    made = transformers.pipeline(
        "text-generation", model=model, tokenizer=tokenizer, device="cpu", max_new_tokens=2
    )
    live = unpack(made, "the time")
    assert live.inputs["input_ids"].shape == (1, 4)
    assert set(live.inputs) <= {"input_ids", "attention_mask"}  # no cache, no positions
    assert "first of 2 " in live.notes[0][1]
    padded = unpack(made, ["the time", "where does it go ?"])
    assert padded.inputs["attention_mask"].tolist()[0][0] == 0


def test_without_an_example_or_with_one_that_it_does_not_take(tokenizer):
    made = pipeline("text-classification", tokenizer)
    with pytest.raises(UsageError, match="needs an example"):
        unpack(made, None)
    with pytest.raises(UserModelError, match=r"^Pipeline ") as refused:
        unpack(made, object())
    assert "\n" not in str(refused.value)


def test_what_is_sent_is_measured_with_a_note_under_the_models_name(
    tokenizer, tmp_path, monkeypatch
):
    """As ``test_api`` has it of a module; here without processes, which take long to begin."""
    monkeypatch.setenv("FRAMEWORKTAX_CACHE", str(tmp_path))
    monkeypatch.setattr(api, "run_plan", lambda plan, folder, **options: plan)
    made = pipeline("text-classification", tokenizer)
    plan = ft.measure(made, "the time", runtimes="eager", batch=[2], store=tmp_path / "s")
    (point,) = plan.points
    assert point.workload.model == "BertForSequenceClassification"
    model = build_live(plan.live, point.workload, "cpu")
    assert [code for code, _ in model.notes] == ["model-alone"]
    target = Target(device="cpu", threads=torch.get_num_threads(), precision="float32")
    loaded = runtimes.get("eager").load(model, target, tmp_path)
    (found,) = to_arrays(loaded.bind(2)())
    with torch.no_grad():
        expected = made.model(**unpack(made, "the time").inputs).logits[0].tolist()
    assert found.tolist() == [pytest.approx(expected), pytest.approx(expected)]


def test_a_sentence_encoder_gives_one_embedding_a_sentence(tokenizer, tmp_path):
    sentence_transformers = pytest.importorskip("sentence_transformers")
    torch.manual_seed(SEED)
    transformers.BertModel(transformers.BertConfig(**SIZES)).save_pretrained(tmp_path / "m")
    tokenizer.save_pretrained(tmp_path / "m")
    encoder = sentence_transformers.SentenceTransformer(str(tmp_path / "m"), device="cpu")
    texts = ["the time", "where does it go ?"]
    live = unpack(encoder, texts)
    with torch.no_grad():
        found = live.module.eval()(**live.inputs)
    assert found.tolist() == pytest.approx(encoder.encode(texts), abs=1e-6)
    assert (live.name, live.notes[0][0]) == ("SentenceTransformer", "model-alone")
