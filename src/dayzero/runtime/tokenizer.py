"""The process that reads a release's tokenizer: `python -m dayzero.runtime.tokenizer FOLDER PARENT`, by `Tokens`.

Library code and a template of strangers work here on files of strangers: they may fail in any way, and never end. Each
line on standard input is a prompt or the ids of a text; each line on standard output an answer. The first answer says
that all is read. Whatever error ends the process is told in its last answer.
"""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from dayzero.backends.process import die_with_parent
from dayzero.schema import Noun, from_json, to_json

from .library import cause

MEMORY = 8 << 30
"""Bytes that the process may allocate; tokenizers of 250,000 tokens take a tenth of it."""
CONFIG, TOKENIZER, TEMPLATE, GENERATION = "config.json", "the tokenizer", "the chat template", "generation_config.json"


class Question(Noun, frozen=True, kw_only=True):
    """A prompt to encode, or ids to decode."""

    prompt: str | None = None
    """Text."""
    tokens: tuple[int, ...] = ()
    """Without a prompt: ids."""


class Answer(Noun, frozen=True, kw_only=True):
    """What was asked for, or why there is none."""

    tokens: tuple[int, ...] = ()
    """Ids of a prompt."""
    text: str = ""
    """Text of ids, without special tokens."""
    ends: str = "null"
    """In the first answer: the end tokens that the release states, as JSON."""
    plain: str = ""
    """Why the prompt was encoded without the chat template that there is."""
    about: str = ""
    """What could not be used: config.json, the tokenizer, the chat template ...; empty when all is well."""
    why: str = ""
    """The library's words."""


class _Teller:
    """Writes answers; the last one is about the error that ends the process."""

    def __init__(self, stream: IO[bytes]) -> None:
        self.stream, self.about = stream, TOKENIZER

    def say(self, answer: Answer) -> None:
        self.stream.write(to_json(answer) + b"\n")
        self.stream.flush()

    def last(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        """For sys.excepthook."""
        self.say(Answer(about=self.about, why=cause(error)))


def main(root: Path) -> None:
    """Answer until standard input ends."""
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    teller = _Teller(os.fdopen(os.dup(1), "wb"))
    os.dup2(2, 1)  # what libraries print is no answer
    sys.excepthook = teller.last
    tokenizer, ends = _read(root, teller)
    teller.say(Answer(ends=to_json(ends).decode()))
    for line in sys.stdin.buffer:
        question = from_json(line, Question)
        if question.prompt is None:
            teller.about = TOKENIZER
            teller.say(Answer(text=str(tokenizer.decode(list(question.tokens), skip_special_tokens=True))))
        else:
            teller.say(_encoded(tokenizer, question.prompt, teller))


def _read(root: Path, teller: _Teller) -> tuple[Any, Any]:
    """(tokenizer, end tokens as the release states them)."""
    from transformers import AutoConfig, AutoTokenizer, GenerationConfig

    local = {"local_files_only": True}
    teller.about = CONFIG
    config = AutoConfig.from_pretrained(root, trust_remote_code=False, **local)
    teller.about = TOKENIZER
    tokenizer = AutoTokenizer.from_pretrained(root, trust_remote_code=False, **local)
    teller.about = GENERATION
    stated = (GenerationConfig.from_pretrained(root, **local) if (root / GENERATION).exists()
              else GenerationConfig.from_model_config(config))
    return tokenizer, stated.eos_token_id


def _encoded(tokenizer: Any, prompt: str, teller: _Teller) -> Answer:
    """As a user's turn, when the release has a chat template and that takes one without anything before it."""
    from jinja2 import TemplateError

    plain = ""
    if tokenizer.chat_template:
        teller.about = TEMPLATE
        try:
            turn = [{"role": "user", "content": prompt}]
            return Answer(tokens=tuple(tokenizer.apply_chat_template(turn, add_generation_prompt=True,
                                                                     return_dict=False)))
        except TemplateError as error:
            if type(error) is not TemplateError:  # that one the template itself raises; all others are about its code
                raise
            plain = cause(error)
    teller.about = TOKENIZER
    return Answer(tokens=tuple(tokenizer(prompt)["input_ids"]), plain=plain)


if __name__ == "__main__":
    die_with_parent(int(sys.argv[2]))
    main(Path(sys.argv[1]))
