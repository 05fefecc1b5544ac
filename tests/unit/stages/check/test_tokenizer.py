"""Tokenizers of two releases: files, templates, and the ids that were run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support import small_release, tiny

from dayzero.errors import NotPossible
from dayzero.runtime.tokens import Tokens
from dayzero.stages.check.tokenizer import check_tokenizer
from dayzero.stages.read import read

PROMPTS = ("ab", "c")


def _write(folder: Path) -> Path:
    small_release.write(folder)
    (folder / "tokenizer.json").unlink()
    tiny._tokenizer().save_pretrained(folder)
    return folder


class _Letters:
    """In place of a process with the library: a letter's number in tokenizer.json, then what the template adds."""

    def __init__(self, root: str) -> None:
        self.root = Path(root)
        if not (self.root / "tokenizer.json").exists():
            raise NotPossible("the tokenizer cannot be used", "")

    def __enter__(self) -> _Letters:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def encode(self, prompts: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
        vocabulary = json.loads((self.root / "tokenizer.json").read_text())["model"]["vocab"]
        return tuple(tuple(vocabulary[letter] for letter in prompt) for prompt in prompts)


@pytest.fixture
def letters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dayzero.stages.check.tokenizer.Tokens", _Letters)


def _found(ours: Path, theirs: Path, kind=_Letters):
    release, reference = read(str(ours)), read(str(theirs))
    with kind(str(ours)) as tokenizer:
        ran = [tokenizer.encode(PROMPTS)]
    (check,), not_made = check_tokenizer(release, reference, PROMPTS, ran)
    return ("" if check.passed else check.detail), not_made


@pytest.fixture
def reference(tmp_path: Path) -> Path:
    return _write(tmp_path / "reference")


def _changed(path: Path, **changes: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.slow
def test_with_the_library(tmp_path: Path, reference: Path) -> None:
    """The template adds a letter to each prompt, and nothing else is another."""
    template = "{{ messages[0]['content'] }}"
    (reference / "chat_template.jinja").write_text(template)
    ours = _write(tmp_path / "ours")
    (ours / "chat_template.jinja").write_text(f"{template}!")
    assert _found(ours, reference, Tokens)[0] == (
        "prompt 1 has other token ids; prompt 2 has other token ids; the chat template is another one")


@pytest.mark.usefixtures("letters")
def test_a_copy_is_the_same(tmp_path: Path, reference: Path) -> None:
    ours = _write(tmp_path / "ours")
    _changed(ours / "tokenizer_config.json", name_or_path="elsewhere")
    assert _found(ours, reference) == ("", {})


@pytest.mark.usefixtures("letters")
def test_other_ids_and_content_are_told(tmp_path: Path, reference: Path) -> None:
    ours = _write(tmp_path / "ours")
    path = ours / "tokenizer.json"
    words = json.loads(path.read_text())
    vocabulary = words["model"]["vocab"]
    vocabulary["a"], vocabulary["z"] = vocabulary["z"], vocabulary["a"]
    path.write_text(json.dumps(words))
    assert _found(ours, reference)[0] == "prompt 1 has other token ids; tokenizer.json has other content"


@pytest.mark.usefixtures("letters")
def test_special_tokens_that_no_prompt_shows(tmp_path: Path, reference: Path) -> None:
    ours = _write(tmp_path / "ours")
    _changed(ours / "tokenizer_config.json", eos_token="<s>")
    assert _found(ours, reference)[0] == "tokenizer_config.json: eos_token is \"<s>\" instead of \"</s>\""


@pytest.mark.usefixtures("letters")
def test_a_chat_template_counts_wherever_it_stands(tmp_path: Path, reference: Path) -> None:
    template = "{{ messages[0]['content'] }}"
    _changed(reference / "tokenizer_config.json", chat_template=template)
    ours = _write(tmp_path / "ours")
    assert _found(ours, reference)[0] == "the chat template is another one"
    (ours / "chat_template.jinja").write_text(template)
    assert _found(ours, reference) == ("", {})


@pytest.mark.usefixtures("letters")
def test_what_cannot_be_compared_is_listed(tmp_path: Path, reference: Path) -> None:
    ours = _write(tmp_path / "ours")
    (ours / "merges.txt").write_text("")
    assert _found(ours, reference) == ("", {"tokenizer: merges.txt": "this release alone has it"})
    (reference / "tokenizer.json").unlink()
    _, not_made = _found(ours, reference)
    assert not_made["tokenizer: token ids of the prompts"] == "the reference's: the tokenizer cannot be used"
