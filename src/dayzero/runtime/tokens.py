"""Prompts to token ids and back, with the release's own tokenizer and chat template, in a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dayzero.errors import NotPossible
from dayzero.schema import from_json, to_json

from .tokenizer import CONFIG, GENERATION, TEMPLATE, TOKENIZER, Answer, Question

READ_S = 300.0
"""Seconds that reading the tokenizer may take, the libraries' import included."""
ANSWER_S = 60.0
"""Seconds that one prompt or text may take."""
_HINTS = {
    CONFIG: "correct it, or use a version of transformers that knows this model",
    TOKENIZER: "put the release's tokenizer files into its folder, as they were published",
    TEMPLATE: "correct chat_template in tokenizer_config.json, or chat_template.jinja",
    GENERATION: "correct it, or take it out of the folder",
}


class Tokens:
    """A release's tokenizer; to be closed. Every method raises NotPossible when its files cannot be used, or when that
    takes longer than it may."""

    ends: Any
    """The end tokens as the release states them: of any type."""
    plain: str
    """Why prompts were encoded without the release's chat template; empty when it was used or there is none."""

    def __init__(self, root: str | Path, *, answer_s: float = ANSWER_S) -> None:
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1",
                       "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "dayzero.runtime.tokenizer", str(Path(root).resolve()), str(os.getpid())],
            env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            start_new_session=True)
        self._limit_s, self.plain = answer_s, ""
        try:
            self.ends = json.loads(self._answer(READ_S).ends)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Tokens:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        with contextlib.suppress(BrokenPipeError):
            self._process.communicate()

    def encode(self, prompts: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """Token ids of each prompt; as a user's turn when the release has a chat template that takes one."""
        answers = [self._ask(Question(prompt=prompt)) for prompt in prompts]
        self.plain = next((answer.plain for answer in answers if answer.plain), "")
        return tuple(answer.tokens for answer in answers)

    def decode(self, tokens: Sequence[int]) -> str:
        """The text, without special tokens."""
        return self._ask(Question(tokens=tuple(tokens))).text

    def _ask(self, question: Question) -> Answer:
        pipe = self._process.stdin
        with contextlib.suppress(BrokenPipeError):  # its last answer says why
            if pipe:
                pipe.write(to_json(question) + b"\n")
                pipe.flush()
        return self._answer(self._limit_s)

    def _answer(self, limit_s: float) -> Answer:
        late = threading.Event()

        def stop() -> None:
            late.set()
            self._process.kill()

        timer = threading.Timer(limit_s, stop)
        timer.start()
        try:
            line = self._process.stdout.readline() if self._process.stdout else b""
        finally:
            timer.cancel()
        if late.is_set():
            raise NotPossible(f"tokenizer and chat template are not done after {limit_s:g} s", _HINTS[TEMPLATE])
        if not line:
            raise NotPossible(f"the tokenizer's process ended with {self._process.wait()}", _HINTS[TOKENIZER])
        answer = from_json(line, Answer)
        if answer.about:
            raise NotPossible(f"{answer.about} cannot be used: {answer.why}", _HINTS[answer.about])
        return answer
