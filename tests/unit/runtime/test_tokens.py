"""The process that reads a tokenizer: what it gives, and what it says of files that cannot be used."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.support import tiny

from dayzero.errors import NotPossible
from dayzero.runtime.tokens import Tokens

pytest.importorskip("transformers")
pytestmark = pytest.mark.slow  # each case is a process that imports the library
USER = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{{ '!' if add_generation_prompt }}"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.dense(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture
def root(saved: Path, tmp_path: Path) -> Path:
    """A copy to break."""
    return Path(shutil.copytree(saved, tmp_path / "model", ignore=shutil.ignore_patterns("*.safetensors")))


def test_tokens_and_back(root: Path) -> None:
    with Tokens(root) as tokens:
        (first, second) = tokens.encode(["Zürich", ""])
        assert tokens.decode((*first, 1)) == "Zürich" and len(first) == 7 and second == ()
        assert tokens.ends == 1 and not tokens.plain


def test_a_chat_template_is_used(root: Path) -> None:
    (root / "chat_template.jinja").write_text(USER)
    with Tokens(root) as tokens:
        assert tokens.decode(tokens.encode(["hi"])[0]) == "<user>hi!"
        assert not tokens.plain


def test_a_template_that_refuses_the_turn_is_left_out_and_that_is_said(root: Path) -> None:
    (root / "chat_template.jinja").write_text("{{ raise_exception('a system turn is needed') }}")
    with Tokens(root) as tokens:
        assert tokens.decode(tokens.encode(["hi"])[0]) == "hi"
        assert "a system turn is needed" in tokens.plain


def _refusal(root: Path, **options: float) -> str:
    with pytest.raises(NotPossible) as caught, Tokens(root, **options) as tokens:
        tokens.encode(["hi"])
    assert caught.value.hint and "\n" not in caught.value.reason
    return caught.value.reason


@pytest.mark.parametrize(("key", "value", "words"), [
    ("rms_norm_eps", 1, "rms_norm_eps"), ("auto_map", None, "NoneType"), ("dtype", [], "IndexError"),
    ("model_type", "of_tomorrow", "of_tomorrow")])
def test_a_config_that_the_library_does_not_take(root: Path, key: str, value: object, words: str) -> None:
    path = root / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    reason = _refusal(root)
    assert reason.startswith("config.json cannot be used: ") and words in reason


@pytest.mark.parametrize(("name", "text", "about"), [
    ("tokenizer_config.json", "[]", "the tokenizer"), ("tokenizer.json", "{}", "the tokenizer"),
    ("generation_config.json", "[]", "generation_config.json"),
    ("chat_template.jinja", "{% for", "the chat template"),
    ("chat_template.jinja", "{{ messages.a.b }}", "the chat template"),
    ("chat_template.jinja", "{{ 'a' * 20000000000 }}", "the chat template")])
def test_a_file_that_cannot_be_used_is_named(root: Path, name: str, text: str, about: str) -> None:
    (root / name).write_text(text)
    assert _refusal(root).startswith(f"{about} cannot be used: ")


def test_no_tokenizer_is_said(root: Path) -> None:
    for path in root.glob("token*"):
        path.unlink()
    assert _refusal(root).startswith("the tokenizer cannot be used: ")


def test_a_template_that_never_ends_is_stopped(root: Path) -> None:
    loop = "{% for a in range(99999) %}"
    (root / "chat_template.jinja").write_text(loop * 3 + "{% endfor %}" * 3)
    assert _refusal(root, answer_s=1.0) == "tokenizer and chat template are not done after 1 s"


def test_a_process_that_dies_is_said(root: Path) -> None:
    with Tokens(root) as tokens:
        tokens._process.kill()
        with pytest.raises(NotPossible, match="ended with -9"):
            tokens.encode(["hi"])


def test_no_process_is_left(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither after an error while it starts."""
    started = []

    def start(*arguments: object, **options: object):
        started.append(popen(*arguments, **options))
        return started[-1]

    popen = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", start)
    with Tokens(root):
        pass
    (root / "config.json").write_text("{}")
    _refusal(root)
    assert len(started) == 2 and all(process.poll() is not None for process in started)
