"""What is said of releases that cannot be run for want of their weights."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
from safetensors.numpy import save_file

from dayzero.errors import NotPossible
from dayzero.runtime.weights import check_weights
from dayzero.stages.read import read

CONFIG = ('{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 8, "hidden_size": 4, '
          '"num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 8}')
SHARD = "model-0000{}-of-00002.safetensors"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(CONFIG)
    save_file({"model.embed_tokens.weight": np.ones((8, 4), np.float32)}, tmp_path / SHARD.format(1))
    save_file({"model.norm.weight": np.ones(4, np.float32)}, tmp_path / SHARD.format(2))
    return tmp_path


def test_a_whole_release_gives_its_folder(root: Path) -> None:
    assert check_weights(read(str(root))) == root.resolve()


@pytest.mark.parametrize("left", [-1, 12])
def test_a_file_that_is_cut_short_is_named(root: Path, left: int) -> None:
    file = root / SHARD.format(2)
    file.write_bytes(file.read_bytes()[:left])
    for partial in (False, True):
        with pytest.raises(NotPossible, match=f"end before their data does: {file.name}"):
            check_weights(read(str(root)), partial=partial)


def test_a_missing_file_is_named_unless_some_layers_will_do(root: Path) -> None:
    (root / SHARD.format(2)).unlink()
    release = read(str(root))
    with pytest.raises(NotPossible, match=f"files of weights are missing: {SHARD.format(2)}"):
        check_weights(release)
    assert check_weights(release, partial=True) == root.resolve()


def test_names_and_shapes_alone_are_no_weights(root: Path) -> None:
    release = read(str(root))
    for less in (msgspec.structs.replace(release, has_weights=False), msgspec.structs.replace(release, root=None)):
        with pytest.raises(NotPossible, match="names and shapes only"):
            check_weights(less)
