"""Prompts to token ids and back, with the release's own tokenizer and chat template, in a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dayzero.errors import NotPossible, StageError
from dayzero.schema import from_json, to_json

from .starting import Plain, Start, library_variables
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
    """A release's tokenizer; to be closed. For any thread. Every method raises NotPossible when its files cannot be
    used, or when that takes longer than it may."""

    ends: Any
    """The end tokens as the release states them: of any type."""
    sampling: dict[str, Any]
    """What its generation config states about how tokens are chosen, of any type."""
    plain: str
    """Why prompts were encoded without the release's chat template; empty when it was used or there is none."""

    def __init__(self, root: str | Path, *, answer_s: float = ANSWER_S, start: Start | None = None,
                 log: Path = Path(os.devnull)) -> None:
        """`start`: where processes are started that may run the release's own code; None: it does not run. `log`: file
        of what that prints."""
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = (start or Plain())(
                [sys.executable, "-m", "dayzero.runtime.tokenizer", str(Path(root).resolve()), "{parent}", "{end}",
                 *(["own"] if start else [])],
                {**(start.variables if start else os.environ), **library_variables(1)}, theirs.fileno(), log)
        self._line, self._limit_s, self.plain, self._closed = ours, answer_s, "", False
        self._heard, self._asking = ours.makefile("rb"), threading.Lock()
        try:
            first = self._answer(READ_S)
            self.ends, self.sampling = json.loads(first.ends), json.loads(first.sampling)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Tokens:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process. Who waits for an answer gets StageError."""
        self._closed = True
        self._process.kill()
        self._process.wait()
        self._heard.close()
        self._line.close()

    def encode(self, prompts: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """Token ids of each prompt; as a user's turn when the release has a chat template that takes one."""
        answers = [self._ask(Question(prompt=prompt)) for prompt in prompts]
        self.plain = next((answer.plain for answer in answers if answer.plain), "")
        return tuple(answer.tokens for answer in answers)

    def encode_plain(self, texts: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """Token ids of each text as it is, with what the tokenizer puts before every text."""
        return tuple(self._ask(Question(text=text)).tokens for text in texts)

    def decode(self, tokens: Sequence[int]) -> str:
        """The text, without special tokens."""
        return self._ask(Question(tokens=tuple(tokens))).text

    def _ask(self, question: Question) -> Answer:
        with self._asking:
            try:
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # its last answer says why
                    self._line.sendall(to_json(question) + b"\n")
                return self._answer(self._limit_s)
            except (NotPossible, OSError, ValueError):
                if self._closed:
                    raise StageError("the tokenizer was closed before that", "load the release again") from None
                raise

    def _read(self) -> bytes:
        with contextlib.suppress(ConnectionResetError):  # it has ended, and left questions unread
            return self._heard.readline()
        return b""

    def _answer(self, limit_s: float) -> Answer:
        late = threading.Event()

        def stop() -> None:
            late.set()
            self._process.kill()

        timer = threading.Timer(limit_s, stop)
        timer.start()
        try:
            line = self._read()
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
