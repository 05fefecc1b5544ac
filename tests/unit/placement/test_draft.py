"""The draft that multi-token-prediction weights are."""

from __future__ import annotations

import msgspec
import pytest
from tests.support.plan_models import attention_families, dense, family, sparse, target

from dayzero.placement.draft import draft_of, drafted
from dayzero.schema import FeedForward, Layer, ModelSpec
from dayzero.schema.target import EngineRequest


def predicting(model: ModelSpec, layers: int, *, head: bool) -> ModelSpec:
    """The model with multi-token-prediction layers behind the others, all with attention and experts like theirs."""
    last = len(model.layers)
    own = [msgspec.structs.replace(
        one, role=f"mtp.{one.role}", layers=tuple(range(last, last + layers)), count=one.count // last * layers,
        parameters=one.parameters // last * layers, stored_bytes=one.stored_bytes // last * layers)
        for one in model.families if one.layers]
    if head:
        own.append(family("mtp.head", (model.vocab_size, model.hidden_size), 0, "vocab", 0))
    return msgspec.structs.replace(model, families=(*model.families, *own), mtp_layers=layers)


def test_no_weights_no_draft() -> None:
    assert draft_of(dense()) is None
    assert draft_of(sparse()) is None


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("head", [False, True])
def test_a_draft_is_one_layer_and_a_head(layers: int, head: bool) -> None:
    model = sparse(layers=8)
    draft = draft_of(predicting(model, layers, head=head))
    assert draft is not None
    assert draft.layers == (model.layers[0],)
    one_layer = sum(one.parameters for one in model.families if one.layers) // 8
    assert sum(one.parameters for one in draft.families) == one_layer + model.vocab_size * model.hidden_size
    assert sorted({one.role for one in draft.families if one.role == "head"}) == ["head"]
    assert not draft.tied_embeddings


def test_a_tied_embedding_is_the_head_of_the_draft() -> None:
    draft = draft_of(predicting(dense(), 1, head=False))
    assert draft is not None and draft.tied_embeddings
    assert [one.role for one in draft.families if not one.layers] == ["norm.final", "embedding"] or [
        one.role for one in draft.families if not one.layers] == ["embedding"]


def test_the_draft_has_the_kinds_that_its_weights_play() -> None:
    """Of layers without and with experts the draft without any is like the former, though they come first."""
    model = sparse(layers=4)
    dense_block = FeedForward(kind="dense", width=2048, input_width=1024)
    mixed = msgspec.structs.replace(
        model, feed_forwards={"f": model.feed_forwards["f"], "d": dense_block},
        layers=(Layer(attention="a", feed_forward="d"), *model.layers[1:]))
    own = [msgspec.structs.replace(one, role=f"mtp.{one.role}", layers=(4,))
           for one in attention_families(1, 1024, 16, 4, 64)]
    draft = draft_of(msgspec.structs.replace(mixed, families=(*mixed.families, *own), mtp_layers=1))
    assert draft is not None and draft.layers[0].feed_forward == "d"


def test_a_draft_needs_tokens_to_propose_and_an_engine_that_does() -> None:
    model = predicting(sparse(), 1, head=True)
    plain, proposing = target(), target(draft_tokens=2, acceptance_length=2.0)
    speculates = msgspec.structs.replace(proposing.engine, facts=EngineRequest(speculative="mtp"))
    assert drafted(model, plain) is None
    assert drafted(model, proposing) is None
    assert drafted(model, msgspec.structs.replace(proposing, engine=speculates)) == draft_of(model)
    assert drafted(sparse(), msgspec.structs.replace(proposing, engine=speculates)) is None
