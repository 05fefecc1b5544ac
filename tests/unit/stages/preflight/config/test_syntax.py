"""Reading of model code for the config keys that it uses."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support import config_release as cards

from dayzero.stages.preflight.config.syntax import model_code

CONFIG = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 100,
          "intermediate_size": 64}


@pytest.mark.parametrize("model_type", ["x" * 300, "../../etc", "a\0b", "", "²", None, 7, ["llama"]])
def test_a_model_type_that_no_file_can_be_named_after(tmp_path: Path, model_type: object) -> None:
    assert model_code(cards.release(tmp_path / "r", {**CONFIG, "model_type": model_type})) == []
