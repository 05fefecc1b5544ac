"""Which layers of a release are there, and what is run of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support import tiny

from dayzero.errors import ReleaseError

torch: Any = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.experts(tmp_path_factory.mktemp("shortened") / "model", dtype="float32")


def _model(root: Path) -> Any:
    from dayzero.runtime.building import blueprint

    return blueprint(root).model


def _missing(model: Any, *parts: str) -> list[str]:
    return [name for name in model.state_dict() if any(part in name for part in parts)]


def test_the_first_layers_that_are_whole(root: Path) -> None:
    from dayzero.runtime.building.shortened import layers_there

    model = _model(root)
    assert layers_there(model, ()) == (4, "")
    count, said = layers_there(model, _missing(model, "layers.2.", "layers.3."))
    assert (count, said) == (2, "only layers 0-1 of 4 are here: this is NOT the released model")
    count, said = layers_there(model, _missing(model, "layers.3.mlp"))
    assert count == 3 and said.endswith("; layer 3 is there in part and left out")


@pytest.mark.parametrize(("parts", "message"), [
    (("layers.1.self_attn.q_proj",), r"layer 1 lacks model.layers.1.self_attn.q_proj.weight, but layer 2 is there"),
    (("layers.0.", "layers.1.", "layers.2.", "layers.3."), r"layer 0 lacks .* and \d+ more: what is there is no model"),
    (("model.norm", "layers.3."), r"do not hold model.norm.weight, without which no layer can be run"),
])
def test_what_is_no_model_of_the_first_layers_is_refused(root: Path, parts: tuple[str, ...], message: str) -> None:
    from dayzero.runtime.building.shortened import layers_there

    model = _model(root)
    with pytest.raises(ReleaseError, match=message):
        layers_there(model, _missing(model, *parts))


def test_a_download_that_was_cut_short_runs_as_a_model_of_its_layers(root: Path, tmp_path: Path) -> None:
    """Files as they come from a hub: the index names all, some are here, and one ends inside of a layer's experts."""
    from safetensors.torch import load_file, save_file
    from transformers import AutoModelForCausalLM

    from dayzero.runtime.rank import Rank
    from dayzero.runtime.sharding import Mesh
    from dayzero.schema import Layout

    for file in root.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    for file in tmp_path.glob("*.safetensors"):
        kept = {name: value for name, value in load_file(file).items() if "layers.3." not in name
                and not ("layers.2." in name and any(f"experts.{number}." in name for number in (5, 6, 7)))}
        file.unlink()
        if kept:
            save_file(kept, file, metadata={"format": "pt"})
    assert any(not (tmp_path / file.name).exists() for file in root.glob("*.safetensors"))
    with pytest.raises(ReleaseError, match=r"which the index names, is missing"):
        Rank(tmp_path, "f32").prepare(Layout(), 0)
    rank = Rank(tmp_path, "f32", partial=True)
    held = rank.prepare(Layout(), 0)
    rank.join(Mesh(Layout(), 0))
    assert held.layers == (0, 1) and "layers 0-1 of 4" in held.left_out and "layer 2 is there in part" in held.left_out
    whole = AutoModelForCausalLM.from_pretrained(root, dtype=torch.float32).eval()
    del whole.model.layers[2:]
    whole.config.num_hidden_layers = 2
    ids = torch.tensor([[3, 4, 5, 6]])
    with torch.no_grad():
        assert torch.allclose(rank.model(input_ids=ids).logits, whole(ids).logits, atol=1e-5)
        assert rank.model.config.num_hidden_layers == 2
