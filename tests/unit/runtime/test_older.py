"""Names that transformers had before, on stand-ins for its configs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


def whole(text: Any, **own: Any) -> SimpleNamespace:
    return SimpleNamespace(get_text_config=lambda: text, **own)


@pytest.mark.parametrize(("version", "name"), [
    ("4.33.1", "torch_dtype"), ("4.55.4", "torch_dtype"), ("4.56.0", "dtype"), ("5.0.0rc1", "dtype")])
def test_the_name_of_the_dtype(version: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from dayzero.runtime.older import keyword, stated_dtype

    monkeypatch.setattr("transformers.__version__", version)
    assert keyword(torch.float16) == {name: torch.float16}
    stated, other = SimpleNamespace(**{name: torch.float16}), SimpleNamespace(**{name: None})
    assert stated_dtype(stated) == stated_dtype(whole(stated)) == torch.float16  # before 4.45 there is no text part
    assert stated_dtype(whole(other, **{name: "bfloat16"})) == torch.bfloat16  # of the whole
    assert stated_dtype(whole(other, **{name: "nothing"})) is stated_dtype(SimpleNamespace()) is None


def test_what_is_installed_takes_it() -> None:
    from dayzero.runtime.older import keyword, stated_dtype

    config = transformers.LlamaConfig(hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1,
                                      vocab_size=8, dtype="float16")
    assert stated_dtype(config) == torch.float16
    model = transformers.AutoModelForCausalLM.from_config(config, **keyword(torch.bfloat16))
    assert model.dtype == torch.bfloat16
