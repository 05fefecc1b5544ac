"""A server as a scorer: what it tells of tokens becomes what is told of texts."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.served import native_form, prefill_form, serving, table, written

from dayzero.errors import EndpointError, NotPossible
from dayzero.runtime.endpoint import Endpoint
from dayzero.runtime.evaluation.harness import _greedy
from dayzero.runtime.evaluation.scorer import Asked
from dayzero.runtime.evaluation.served import ServedScorer


def tokenize(body: dict[str, Any]) -> tuple[int, Any]:
    return 200, {"tokens": [ord(letter) - ord("a") for letter in body["prompt"]]}


ASKED = [Asked("abc", "de"), Asked("", "kkj"), *(Asked(written([number]), "bcd") for number in range(12))]


def test_texts_are_scored_in_their_order() -> None:
    with serving({"/tokenize": tokenize, "/generate": native_form}) as url:
        found = ServedScorer(Endpoint(url), None).score(ASKED)
    for (context, text), score in zip(ASKED, found, strict=True):
        ids = [ord(letter) - ord("a") for letter in context + text]
        rows, first = table(ids), max(1, len(context))
        assert score.logprob == pytest.approx(sum(rows[at - 1][ids[at]] for at in range(first, len(ids))))
        assert score.tokens == len(ids) - first
        assert score.greedy == all(rows[at - 1].argmax() == ids[at] for at in range(first, len(ids)))


def test_whether_the_likeliest_was_taken_is_not_made_up() -> None:
    with serving({"/tokenize": tokenize, "/generate": prefill_form}) as url:
        [score] = ServedScorer(Endpoint(url, text=written), None).score(ASKED[:1])
    assert score.greedy is None
    with pytest.raises(NotPossible, match="does not tell which tokens are the likeliest"):
        _greedy(score)


def test_the_first_refusal_ends_it() -> None:
    asked = []

    def fails(body: dict[str, Any]) -> tuple[int, Any]:
        asked.append(body)
        return (500, "out of memory") if len(asked) > 20 else native_form(body)

    with serving({"/tokenize": tokenize, "/generate": fails}) as url, pytest.raises(EndpointError, match="out of mem"):
        ServedScorer(Endpoint(url), None).score(ASKED * 20)
    assert len(asked) < 100
