"""The usual interface of completions: `prompt_logprobs`, which some servers add to it, and `echo`."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec

from .base import MISSING, Answer, OtherTokens, Question, Row, Way, counted, ranked, same_count

_ID = "token_id:"


class _Logprob(msgspec.Struct):
    logprob: float | None


def complete(asked: Question, **more: Any) -> Any:
    """The answer to the prompt with one more token. Raises OtherTokens."""
    answer = asked.server.post("/completions", {"model": asked.model, "prompt": list(asked.tokens), "max_tokens": 1,
                                                "temperature": 0, **more})
    counted(answer, asked.tokens)
    return answer


def number(name: str) -> int:
    """Of a token whose name is its id; -1 for one with another name."""
    return int(name[len(_ID):]) if name.startswith(_ID) and name[len(_ID):].isdecimal() else -1


def _prompt(asked: Question) -> Answer:
    """`prompt_logprobs`: for each token a table from ids to logprobs, the token's own among them."""
    told = complete(asked, prompt_logprobs=asked.top)["choices"][0]["prompt_logprobs"]
    tables = msgspec.convert(told, list[dict[str, _Logprob] | None])
    same_count(len(tables), asked.tokens)
    return Answer(list(asked.tokens), [_row(place, token, table or {}) for place, (token, table) in enumerate(
        zip(asked.tokens[1:], tables[1:], strict=True), 1)])


def _row(place: int, token: int, table: dict[str, _Logprob]) -> Row:
    if table and str(token) not in table:
        raise OtherTokens(f"at position {place}, where token {token} was given, it tells of {', '.join(table)}")
    own = table[str(token)].logprob if table else None
    pairs = [(int(key), each.logprob) for key, each in table.items() if each.logprob is not None]
    return MISSING if own is None else own, ranked(pairs)


def _echo(asked: Question, **more: Any) -> Answer:
    """The prompt comes back as the beginning of the text, with logprobs: texts of tokens, or their ids as text. Where
    there are no ids, the count of the prompt's tokens has to tell whether they are the same."""
    answer = complete(asked, echo=True, logprobs=asked.top, **more)
    told, count = answer["choices"][0]["logprobs"], len(asked.tokens)
    own = msgspec.convert(told["token_logprobs"], list[float | None])
    names = msgspec.convert(told["tokens"], list[str])
    tables = msgspec.convert(told.get("top_logprobs") or [None] * len(own), list[dict[str, float | None] | None])
    if not len(own) == len(names) == len(tables) or not count <= len(own) <= count + 1:
        raise ValueError(f"{len(own)} logprobs for {count} tokens: the prompt does not come back")
    seen = [number(name) for name in names[:count]]
    if -1 in seen and "prompt_tokens" not in (answer.get("usage") or {}):
        raise ValueError("it tells neither ids nor the number of the prompt's tokens: others could not be told apart")
    rows: list[Row] = []
    for value, table in zip(own[1:count], tables[1:count], strict=True):
        pairs = [(number(name), each) for name, each in (table or {}).items() if each is not None]
        rows.append((MISSING if value is None else value, ranked(pairs)))
    return Answer(seen, rows)


PROMPT = Way("prompt_logprobs", _prompt)
ECHO_IDS = Way("echo with token ids", partial(_echo, return_tokens_as_token_ids=True))
ECHO = Way("echo", _echo)
