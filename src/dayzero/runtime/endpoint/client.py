"""The client."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from threading import Lock

import msgspec
import numpy as np
from numpy.typing import NDArray

from dayzero.errors import EndpointError, UsageError, did_you_mean
from dayzero.progress import SILENT, Progress

from .http import PATIENCE_S, Refused, Server
from .ways import WAYS, Answer, OtherTokens, Question, Way

_PROBE = (1, 2, 3)
"""Tokens that every vocabulary has."""
_ROUNDING = 1e-3
"""By so much a logprob may be above 0."""
_SHAPES = (LookupError, ValueError, TypeError, AttributeError, msgspec.ValidationError)


@dataclass(frozen=True)
class Scored:
    """What a model says about given tokens. Row i is about token i + 1: nothing comes before the first."""

    tokens: tuple[int, ...]
    """The tokens that were given."""
    logprobs: NDArray[np.float64]
    """[tokens - 1]: of each but the first, natural logarithm."""
    top_ids: NDArray[np.int64]
    """[tokens - 1, k]: the likeliest, best first; -1: the server does not tell which one, or gives fewer."""
    top_logprobs: NDArray[np.float64]
    """[tokens - 1, k]: theirs; -inf where there are fewer."""


class Endpoint:
    """`url`: up to and with the version, as http://host:8000/v1; `model`: the name that is served; None: the only one.
    `text`: gives the text of token ids, for servers that take nothing else. `patience_s`: how long one that is busy is
    asked again. Used by several threads.

    Raises UsageError for an address that is none or a model that is not served, EndpointError when the server cannot
    be reached or does not answer as it should.
    """

    def __init__(self, url: str, *, model: str | None = None, key: str | None = None, timeout_s: float = 600.0,
                 patience_s: float = PATIENCE_S, text: Callable[[Sequence[int]], str] | None = None,
                 progress: Progress = SILENT) -> None:
        self.server = Server(url, key=key, timeout_s=timeout_s, patience_s=patience_s, progress=progress)
        self._text, self._one_text = text, Lock()
        self.models = self._listed(model)
        """Names of the models that it serves."""
        if model is not None and self.models and model not in self.models:
            raise UsageError(f"{self.server.url} does not serve {model!r}",
                             f"{did_you_mean(model, self.models)}it serves {', '.join(self.models[:5])}")
        if model is None and len(self.models) != 1:
            raise UsageError(f"{self.server.url} serves {len(self.models)} models", "name one with --model")
        self.model = model or self.models[0]

    def _listed(self, model: str | None) -> tuple[str, ...]:
        """One that has no list may serve a model that is named all the same."""
        try:
            answer = self.server.get("/models")
            return tuple(str(each["id"]) for each in answer["data"])
        except Refused as error:
            if error.status == 404 and model is not None:
                return ()
            if error.status == 404:
                raise EndpointError(f"{self.server.url} has no list of models", "check the address: it usually ends "
                                    "with /v1; or name the model with --model") from None
            raise EndpointError(f"{self.server.url} refuses to list its models: {error.status} {error.text}",
                                "look into the server's log") from None
        except _SHAPES:
            raise EndpointError(f"{self.server.url} answers something else than a list of models",
                                "check the address: it usually ends with /v1") from None

    @cached_property
    def way(self) -> Way:
        """How it gives logprobs of given tokens. Raises EndpointError when it does not, and says what was tried."""
        tried = []
        for way in WAYS:
            try:
                way.ask(self._question(_PROBE, 1))
                return way
            except Refused as error:
                tried.append(f"{way.name}: {error.status} {error.text}")
            except OtherTokens as error:
                tried.append(f"{way.name}: {error}")
            except _SHAPES as error:
                tried.append(f"{way.name}: not in its answer ({type(error).__name__} {error})")
        raise EndpointError(f"{self.server.url} gives no logprobs of given tokens: {'; '.join(tried)}",
                            "allow them in the server's options, or record the release itself")

    def score(self, tokens: Sequence[int], *, top: int = 5) -> Scored:
        """Logprobs of the tokens as they are, with `top` of the likeliest. At least two tokens.

        Raises EndpointError when the server refuses, saw other tokens, or gives values that are no logprobs.
        """
        if len(tokens) < 2:
            raise UsageError("a prompt of one token has no logprobs", "give longer ones")
        url = self.server.url
        try:
            answer = self.way.ask(self._question(tokens, top))
            _same(answer.tokens, tokens)
        except Refused as error:
            raise EndpointError(f"{url} refuses {len(tokens)} tokens with {top} of the likeliest: {error.status} "
                                f"{error.text}", "give shorter prompts, ask for fewer of the likeliest with --top, or "
                                "look into the server's log") from None
        except OtherTokens as error:
            raise EndpointError(f"{url} was given {len(tokens)} tokens and looked at others: {error}",
                                "its tokenizer is not the release's, or it adds tokens of its own: turn that off"
                                ) from None
        except _SHAPES as error:
            raise EndpointError(f"{url} answers in another form than before: {error}",
                                "look into the server's log") from None
        return _scored(tuple(tokens), answer, top, url)

    def _question(self, tokens: Sequence[int], top: int) -> Question:
        return Question(self.server, self.model, tokens, top, self._told if self._text else None)

    def _told(self, tokens: Sequence[int]) -> str:
        """One at a time: what tells it need not know of threads."""
        assert self._text is not None
        with self._one_text:
            return self._text(tokens)

    def tokenize(self, text: str) -> tuple[int, ...] | None:
        """Token ids by the server's own tokenizer, without a chat template; None when it does not give them."""
        for body in ({"model": self.model, "prompt": text}, {"content": text, "add_special": True}):
            try:
                answer = self.server.post("/tokenize", body, root=True)
                if tokens := msgspec.convert(answer["tokens"], tuple[int, ...]):
                    return tokens
            except (Refused, EndpointError, *_SHAPES):
                continue
        return None


def _same(seen: Sequence[int], given: Sequence[int]) -> None:
    """Raises OtherTokens unless all tokens that the server tells of are those that were given."""
    if len(seen) > len(given) and list(seen[-len(given):]) == list(given):
        raise OtherTokens(f"it put {', '.join(map(str, seen[:len(seen) - len(given)]))} in front")
    for place, pair in enumerate(zip(seen, given, strict=False)):
        if pair[0] not in (pair[1], -1):
            raise OtherTokens(f"token {pair[0]} at position {place}, where {pair[1]} was given")
    if len(seen) != len(given):
        raise OtherTokens(f"{len(seen)} of them")


def _scored(tokens: tuple[int, ...], answer: Answer, top: int, url: str) -> Scored:
    logprobs = np.array([value for value, _ in answer.rows], dtype=np.float64)
    odd = np.flatnonzero(~np.isfinite(logprobs) | (logprobs > _ROUNDING))
    if len(odd):
        raise EndpointError(
            f"{url} gives {len(odd)} of {len(logprobs)} logprobs that are none, first {logprobs[odd[0]]:g} for token "
            f"{tokens[odd[0] + 1]} at position {odd[0] + 1}", "its model gives numbers that are none there: record "
            "inside of the engine, where every module is seen, or look into the server's log")
    ids = np.full((len(answer.rows), top), -1, dtype=np.int64)
    values = np.full((len(answer.rows), top), -np.inf, dtype=np.float64)
    for row, (_, likeliest) in enumerate(answer.rows):
        for column, (token, value) in enumerate(likeliest[:top]):
            ids[row, column], values[row, column] = token, value
    return Scored(tokens, logprobs, ids, values)
