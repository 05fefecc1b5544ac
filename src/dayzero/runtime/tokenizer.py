"""The process that reads a release's tokenizer: `python -m dayzero.runtime.tokenizer FOLDER PARENT SOCKET [own]`, by
`Tokens`; with `own` in a confined process, where the release's own code for it may run.

Library code and a template of strangers work here on files of strangers: they may fail in any way, and never end. Each
line that comes through the socket is a prompt or the ids of a text; each line that goes an answer. The first answer
says that all is read. Whatever error ends the process is told in its last answer.
"""

from __future__ import annotations

import resource
import socket
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

SAMPLING = ("do_sample", "temperature", "top_k", "top_p")
"""What a generation config may state about how tokens are chosen."""


class Question(Noun, frozen=True, kw_only=True):
    """A prompt or a text to encode, or ids to decode."""

    prompt: str | None = None
    """A user's turn."""
    text: str | None = None
    """Text that is encoded as it is, without a chat template."""
    tokens: tuple[int, ...] = ()
    """Without a prompt and a text: ids."""


class Answer(Noun, frozen=True, kw_only=True):
    """What was asked for, or why there is none."""

    tokens: tuple[int, ...] = ()
    """Ids of a prompt."""
    text: str = ""
    """Text of ids, without special tokens."""
    ends: str = "null"
    """In the first answer: the end tokens that the release states, as JSON."""
    sampling: str = "{}"
    """Likewise what it states about how tokens are chosen."""
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


def main(root: Path, end: int, own: bool) -> None:
    """Answer until nobody asks any more."""
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    line_in = socket.socket(fileno=end)
    teller = _Teller(line_in.makefile("wb"))
    sys.excepthook = teller.last
    tokenizer, stated = _read(root, teller, own)
    sampling = {name: getattr(stated, name, None) for name in SAMPLING}
    teller.say(Answer(ends=to_json(stated.eos_token_id).decode(), sampling=to_json(sampling).decode()))
    for line in line_in.makefile("rb"):
        question = from_json(line, Question)
        if question.text is not None:
            teller.about = TOKENIZER
            teller.say(Answer(tokens=tuple(tokenizer(question.text)["input_ids"])))
        elif question.prompt is None:
            teller.about = TOKENIZER
            teller.say(Answer(text=str(tokenizer.decode(list(question.tokens), skip_special_tokens=True))))
        else:
            teller.say(_encoded(tokenizer, question.prompt, teller))


def _read(root: Path, teller: _Teller, own: bool) -> tuple[Any, Any]:
    """(tokenizer, generation config as the release states it)."""
    from transformers import AutoConfig, AutoTokenizer, GenerationConfig

    local = {"local_files_only": True, "trust_remote_code": own}
    teller.about = CONFIG
    config = AutoConfig.from_pretrained(root, **local)
    teller.about = TOKENIZER
    tokenizer = AutoTokenizer.from_pretrained(root, **local)
    teller.about = GENERATION
    stated = (GenerationConfig.from_pretrained(root, local_files_only=True) if (root / GENERATION).exists()
              else GenerationConfig.from_model_config(config))
    return tokenizer, stated


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
    main(Path(sys.argv[1]), int(sys.argv[3]), sys.argv[4:] == ["own"])
