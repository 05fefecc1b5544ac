"""Servers that tell logprobs only of tokens that they choose: they are made to choose the given ones. The logprobs have
to be those of the model, as they are before a choice is restricted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dayzero.runtime.endpoint.http import Refused

from .base import Answer, OtherTokens, Question, Row, Way, ranked, same_count
from .completions import complete, number

_BIAS = 100
"""Added to the logit of the token that is to be chosen: the most that the interface allows."""
_NO_SUCH_PATH = 404
_CERTAIN = -1e-3
"""Logprob of a token that nothing else could have been instead of."""


def _forced(asked: Question) -> Answer:
    """By a grammar that allows one sequence of token ids, `<[1]> <[2]>`."""
    return Answer(list(asked.tokens), _stretch(asked, 1, len(asked.tokens)))


def _stretch(asked: Question, first: int, end: int) -> list[Row]:
    """Of the tokens from `first` to before `end`. A grammar does not take tokens that end texts, and nobody says which
    these are: what the server refuses is halved, and a token that is left alone is made the likeliest."""
    tokens = asked.tokens[first:end]
    try:
        return _chosen(_completed(asked, first, len(tokens), {
            "grammar": f"root ::= {' '.join(f'<[{token}]>' for token in tokens)}"}), tokens)
    except Refused as refused:
        if refused.status == _NO_SUCH_PATH:
            raise
    if len(tokens) == 1:
        return _chosen(_completed(asked, first, 1, {"logit_bias": [[tokens[0], _BIAS]]}), tokens)
    middle = (first + end) // 2
    return _stretch(asked, first, middle) + _stretch(asked, middle, end)


def _completed(asked: Question, first: int, count: int, how: dict[str, Any]) -> Sequence[Mapping[str, Any]]:
    """What is told of the tokens that follow the first ones."""
    given = asked.tokens[:first]
    answer = asked.server.post("/completion", {"prompt": list(given), "n_predict": count, "n_probs": asked.top,
                                               "temperature": 0, **how}, root=True)
    same_count(int(answer["tokens_evaluated"]), given)
    told: Sequence[Mapping[str, Any]] = answer["completion_probabilities"]
    return told


def _steps(asked: Question) -> Answer:
    """One request for each token, which a large `logit_bias` makes the likeliest."""
    rows = []
    for place in range(1, len(asked.tokens)):
        token = asked.tokens[place]
        answer = complete(asked._replace(tokens=asked.tokens[:place]), logprobs=asked.top,
                          logit_bias={str(token): _BIAS}, return_tokens_as_token_ids=True)
        rows += _chosen(_told(answer["choices"][0]["logprobs"]), [token])
    if all(value > _CERTAIN for value, _ in rows):
        raise ValueError("its logprobs are those after the bias: every token is certain")
    return Answer(list(asked.tokens), rows)


def _told(logprobs: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """The two forms of the interface as the newer one, an object for each token."""
    if "content" in logprobs:
        told: Sequence[Mapping[str, Any]] = logprobs["content"]
        return told
    [name], [value], [table] = logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"]
    return [{"id": number(name), "logprob": value,
             "top_logprobs": [{"id": number(each), "logprob": other} for each, other in (table or {}).items()]}]


def _chosen(told: Sequence[Mapping[str, Any]], tokens: Sequence[int]) -> list[Row]:
    """Of each token that was chosen: it is the given one."""
    if len(told) != len(tokens) or not told:
        raise ValueError(f"logprobs of {len(told)} tokens where {len(tokens)} were to be chosen")
    rows: list[Row] = []
    for each, token in zip(told, tokens, strict=True):
        if each["id"] == -1:
            raise ValueError("it does not tell the ids of tokens")
        if each["id"] != token:
            raise OtherTokens(f"it chose token {each['id']} where {token} was asked for")
        rows.append((float(each["logprob"]), ranked(
            [(int(other["id"]), float(other["logprob"])) for other in each["top_logprobs"]])))
    return rows


FORCED = Way("a grammar of token ids", _forced)
STEPS = Way("one token at a time", _steps)
