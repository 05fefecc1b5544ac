"""An engine of a package: the model of `engine_like`, started with a release, that tells logprobs itself."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dayzero.errors import UsageError
from dayzero.targets.inside import Told, Wanted


class _Running:
    version = "1.0"

    def __init__(self, wanted: Wanted, stride: int, ahead: int) -> None:
        import torch
        from tests.support.engine_like import EngineLike
        from transformers import LlamaForCausalLM

        theirs: Any = LlamaForCausalLM.from_pretrained(wanted.root, dtype=torch.float32)
        self.module, self._head, self._top, self._ahead = EngineLike(theirs, stride), theirs.lm_head, wanted.top, ahead

    def feed(self, tokens: Sequence[int]) -> Told:
        import torch

        with torch.no_grad():
            ids = torch.tensor(tokens) + self._ahead
            logprobs = torch.log_softmax(self._head(self.module(ids, torch.arange(len(ids)))), -1)
        best = logprobs[:-1].topk(self._top)
        return Told(
            logprobs=tuple(logprobs[:-1].gather(1, ids[1:, None]).flatten().tolist()),
            likeliest=tuple(tuple(zip(row.tolist(), values.tolist(), strict=True))
                            for row, values in zip(best.indices, best.values, strict=True)))


class _Engine:
    variables = {"TOY_IN_ONE_PROCESS": "1"}
    defaults = {"TOY_THREADS": "1"}

    @contextmanager
    def running(self, wanted: Wanted) -> Iterator[_Running]:
        if unknown := set(wanted.options) - {"stride", "ahead", "dies"}:
            raise UsageError(f"the engine has no option {unknown.pop()}", "leave it out")
        if wanted.options.get("dies"):
            print(f"killed with {os.environ['TOY_IN_ONE_PROCESS']} and {os.environ['TOY_THREADS']}", flush=True)
            os.abort()
        yield _Running(wanted, wanted.options.get("stride", 1), wanted.options.get("ahead", 0))


ENGINE = _Engine()


def installed(folder: Path) -> Path:
    """A folder for the path, in which a package says that it has this engine."""
    info = folder / "toy_engine-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-engine\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[dayzero.engines]\ntoy = tests.support.inside_engine:ENGINE\n")
    return folder
