"""Scores of a real small model, against the library's own forward; scores of lm-eval's samples."""

from pathlib import Path

import pytest

from dayzero.data.evaluation import bundled_questions, bundled_texts
from dayzero.errors import NotPossible, UsageError
from dayzero.runtime.evaluation import Asked, Scored, evaluate_bundled, joined
from dayzero.runtime.evaluation.harness import found_tasks, task_scores

MODEL = Path(__file__).parents[4] / "demo" / "SmolLM2-135M"


class Fair:
    """Knows nothing: every byte has eight bits."""

    name, engine, digests = "fair", "none", {}

    def score(self, asked):
        return [Scored(-0.6931471805599453 * 8 * len(each.text.encode()), len(each.text), False) for each in asked]


def test_bundled_items_are_sound() -> None:
    questions, texts = bundled_questions(), bundled_texts()
    assert len(questions) >= 100 and len({each.prompt for each in questions}) == len(questions)
    assert all(len(set(each.endings)) == 4 and all(end.startswith(" ") for end in each.endings) for each in questions)
    assert len(texts) >= 20 and all(len(text) > 150 or not text.isascii() for text in texts.values())


def test_what_knows_nothing_needs_eight_bits_for_a_byte() -> None:
    found = evaluate_bundled(Fair())
    bits, correct, doubt = found.scores
    assert all(value == pytest.approx(8.0) for value in bits.items.values())
    assert set(bits.weights) == set(bits.items)
    assert 0 <= sum(correct.items.values()) < len(correct.items) and len(doubt.items) == len(correct.items)
    assert len(joined([found, found]).scores) == 6


@pytest.mark.slow
def test_a_real_model_scores_what_the_library_computes() -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    import dayzero
    from dayzero.runtime.evaluation.model import ModelScorer
    from dayzero.runtime.tokens import Tokens

    asked = [Asked("The capital of France is", " Paris"), Asked("", "One two three four five six."),
             Asked("The capital of France is", " a cheese")]
    with Tokens(MODEL) as tokens, dayzero.load(MODEL, dtype="f32") as loaded:
        scorer = ModelScorer(loaded, tokens, "m", "e")
        found, written = scorer.score(asked), scorer.generate("The capital of France is", [".", "\n"], 8)
        with pytest.raises(NotPossible, match="can be scored"):
            scorer.score([Asked("", "")])
    model = transformers.AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(MODEL)
    for each, score in zip(asked, found, strict=True):
        ids = tokenizer(each.context + each.text, return_tensors="pt").input_ids
        first = max(1, len(tokenizer(each.context).input_ids))
        with torch.no_grad():
            told = model(ids).logits.log_softmax(-1)[0, first - 1:-1]
        expected = told.gather(1, ids[0, first:, None]).sum().item()
        assert score.logprob == pytest.approx(expected, abs=1e-3) and score.tokens == ids.shape[1] - first
    assert written == " Paris"
    assert found[0].greedy and found[0].logprob > found[2].logprob


class Reader:
    """Finds what is hidden: the ending that follows the same words earlier in the text."""

    name, engine, digests = "reader", "none", {}

    def score(self, asked):
        found = []
        for context, text in asked:
            question = context.rpartition("\n")[2]
            found.append(Scored(0.0 if f"{question}{text}" in context else -9.0, 1, True))
        return found


def test_needles_are_hidden_where_they_are_said_to_be() -> None:
    assert evaluate_bundled(Fair(), ("needle",)).scores[0].count == 12
    found = evaluate_bundled(Reader(), ("needle",), longest=1024).scores[0]
    assert found.count == 16 and set(found.items.values()) == {1.0}
    assert "1024 words, depth 0.95" in found.items


def test_samples_of_lm_eval() -> None:
    samples = [{"doc_id": 1, "doc_hash": "a", "filter": "none", "metrics": ["acc"], "acc": 1.0},
               {"doc_id": 2, "doc_hash": "b", "filter": "none", "metrics": ["acc"], "acc": 0.0},
               {"doc_id": 1, "doc_hash": "a", "filter": "strict", "metrics": ["word_perplexity"],
                "word_perplexity": 3.0}]
    right, words = task_scores("t", samples, {"acc": True})
    assert (right.metric, right.scale, right.better, right.items) == ("acc", "share", "higher", {"a": 1.0, "b": 0.0})
    assert (words.metric, words.scale, words.better) == ("word_perplexity, strict", "number", "lower")


def test_tasks_that_there_are_not() -> None:
    assert found_tasks((), None) == ()
    with pytest.raises((NotPossible, UsageError)):
        found_tasks(["no such task"], None)
