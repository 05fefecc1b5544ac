"""Interfaces that servers have beside the usual one, both under `/generate`: of token ids, and of texts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .base import MISSING, Answer, Question, Row, Way, ranked


def _generate(asked: Question, body: dict[str, Any]) -> Mapping[str, Any]:
    answer: Any = asked.server.post("/generate", body, root=True)
    if not isinstance(answer, Mapping):
        raise TypeError("no object")
    return answer


def _value(told: Any) -> float:
    return MISSING if told is None else float(told)


def _input(asked: Question) -> Answer:
    """`meta_info`: for each token [logprob, id, text], and a list of the same of the likeliest."""
    told: Any = _generate(asked, {
        "input_ids": list(asked.tokens), "return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": asked.top,
        "sampling_params": {"max_new_tokens": 1, "temperature": 0}})["meta_info"]
    own = told["input_token_logprobs"]
    tops = told.get("input_top_logprobs") or [None] * len(own)
    rows: list[Row] = []
    for each, top in zip(own[1:], tops[1:], strict=True):
        rows.append((_value(each[0]), ranked([(int(other[1]), float(other[0])) for other in top or ()])))
    return Answer([int(each[1]) for each in own], rows)


def _prefill(asked: Question) -> Answer:
    """`details`: id, text and logprob of each token of a text. It begins with what the server puts before every one;
    of the likeliest others it tells nothing."""
    if asked.text is None:
        raise ValueError("it would take texts, and nobody knows that of the tokens: name a release with --tokenizer")
    told: Any = _generate(asked, {"inputs": asked.text(asked.tokens), "parameters": {
        "max_new_tokens": 1, "details": True, "decoder_input_details": True}})["details"]["prefill"]
    if not told:
        raise ValueError("`prefill` is empty: the server was started without logprobs of prompts")
    return Answer([int(each["id"]) for each in told], [(_value(each["logprob"]), []) for each in told[1:]])


INPUT = Way("input logprobs", _input)
PREFILL = Way("prefill details", _prefill)
