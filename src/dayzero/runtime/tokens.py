"""Prompts to token ids and back, with the release's own tokenizer and chat template."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dayzero.errors import NotPossible


class Tokens:
    """A release's tokenizer. Raises NotPossible when the folder has none that can be used."""

    def __init__(self, root: str | Path) -> None:
        from transformers import AutoTokenizer

        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(str(root), local_files_only=True,
                                                                 trust_remote_code=False)
        except (OSError, ValueError, ImportError, KeyError) as error:
            raise NotPossible(f"no usable tokenizer: {str(error).splitlines()[0]}",
                              "put the release's tokenizer files into its folder") from None

    def encode(self, prompts: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """Token ids of each prompt; as a user's turn when the release has a chat template."""
        return tuple(tuple(self._encode(prompt)) for prompt in prompts)

    def decode(self, tokens: Sequence[int]) -> str:
        """The text, without special tokens."""
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=True))

    def _encode(self, prompt: str) -> list[int]:
        if not self._tokenizer.chat_template:
            return list(self._tokenizer(prompt)["input_ids"])
        turn = [{"role": "user", "content": prompt}]
        return list(self._tokenizer.apply_chat_template(turn, add_generation_prompt=True, return_dict=False))
