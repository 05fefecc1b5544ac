"""Tensors of models against what transformers loads from the same files, whole and in random parts."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, Mxfp4Config, PreTrainedModel

from dayzero.errors import ReleaseError, UsageError
from dayzero.runtime.loading import Checkpoint, Cut
from dayzero.runtime.timeline import Timeline
from dayzero.stages.read import read
from dayzero.stages.twin import twin

CARDS = Path(__file__).parents[4] / "examples/cards"
PLAIN = ["llama-3.1-8b", "gemma-3-1b", "qwen3-235b-a22b", "qwen3-next-80b-a3b", "smollm2-135m"]


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Twin of a card, made once."""
    folder = tmp_path_factory.mktemp("twins")

    @cache
    def made(name: str) -> Path:
        twin(read(str(CARDS / f"{name}.toml")), folder / name)
        return folder / name

    return made


def empty(root: Path, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    config = AutoConfig.from_pretrained(root)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    with torch.device("meta"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=dtype)
    return model


def everything(checkpoint: Checkpoint, **options: Any) -> dict[str, torch.Tensor]:
    return checkpoint.read({name: {} for name in checkpoint.names}, **options)


def same(mine: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> None:
    assert set(mine) == set(theirs)
    for name, tensor in theirs.items():
        assert mine[name].dtype == tensor.dtype
        assert torch.equal(mine[name], tensor), name


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", PLAIN)
def test_tensors_are_what_the_library_loads(name: str, dtype: torch.dtype, release: Any) -> None:
    root = release(name)
    checkpoint = Checkpoint(root, empty(root, dtype))
    assert checkpoint.check() == "" and checkpoint.missing == checkpoint.unused == ()
    theirs = AutoModelForCausalLM.from_pretrained(root, dtype=dtype).state_dict()
    same(everything(checkpoint), theirs)
    _random_cuts(checkpoint, theirs)


@pytest.mark.slow
def test_four_bit_experts_are_what_the_library_makes_of_them(release: Any) -> None:
    root = release("gpt-oss-20b")
    options = {"dtype": torch.bfloat16, "quantization_config": Mxfp4Config(dequantize=True)}
    theirs = AutoModelForCausalLM.from_pretrained(root, **options).state_dict()
    checkpoint = Checkpoint(root, empty(root, torch.bfloat16))
    same(everything(checkpoint), theirs)
    _random_cuts(checkpoint, theirs)


@pytest.mark.slow
def test_blocks_of_8_bit_floats_are_stacked_and_joined(release: Any) -> None:
    """The library refuses the matrix of 576 rows in blocks of 128; each value is the stored one times its block's."""
    root = release("deepseek-v3")
    stored: dict[str, torch.Tensor] = {}
    for path in root.glob("*.safetensors"):
        stored |= load_file(path)

    def value(name: str) -> torch.Tensor:
        weight, scale = stored[name].float(), stored.get(f"{name}_scale_inv")
        if scale is None:
            return weight
        wide = scale.repeat_interleave(128, 0)[:weight.shape[0]].repeat_interleave(128, 1)[:, :weight.shape[1]]
        return weight * wide

    checkpoint = Checkpoint(root, empty(root))
    assert "unused" not in checkpoint.check() and checkpoint.missing == ()
    mine, experts = everything(checkpoint), "model.layers.3.mlp.experts"
    for name, tensor in mine.items():
        if name in stored:
            assert torch.equal(tensor, value(name)), name
    count = mine[f"{experts}.down_proj"].shape[0]
    assert count > 1
    for expert in range(count):
        gate, up, down = (value(f"{experts}.{expert}.{part}_proj.weight") for part in ("gate", "up", "down"))
        assert torch.equal(mine[f"{experts}.gate_up_proj"][expert], torch.cat([gate, up]))
        assert torch.equal(mine[f"{experts}.down_proj"][expert], down)
    _random_cuts(checkpoint, mine)


def _random_cuts(checkpoint: Checkpoint, theirs: dict[str, torch.Tensor]) -> None:
    names = sorted(theirs)

    @settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow], database=None)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(names))
        cut: Cut = {}
        expected = theirs[name]
        for axis, extent in enumerate(theirs[name].shape):
            bound = st.tuples(st.integers(0, extent), st.integers(0, extent)).map(lambda pair: (min(pair), max(pair)))
            kept = tuple(data.draw(st.lists(bound, max_size=2)))
            if kept:
                cut[axis] = kept
                expected = torch.cat([expected.narrow(axis, first, last - first) for first, last in kept], axis)
        assert checkpoint.shape(name, cut) == tuple(expected.shape)
        out = torch.full(expected.shape, 99, dtype=expected.dtype)
        checkpoint.fill(name, cut, out)
        assert torch.equal(out, expected)

    check()


class Tied(torch.nn.Module):
    """Not the library's: names are as they are."""

    def __init__(self) -> None:
        super().__init__()
        with torch.device("meta"):
            self.embed, self.head = torch.nn.Embedding(300, 256), torch.nn.Linear(256, 300, bias=False)
            self.norm = torch.nn.BatchNorm1d(8)
        self.head.weight = self.embed.weight


@pytest.fixture
def tied(tmp_path: Path) -> Path:
    made = torch.nn.BatchNorm1d(8).state_dict()
    save_file({"embed.weight": torch.randn(300, 256), "more.weight": torch.ones(2),
               **{f"norm.{name}": tensor for name, tensor in made.items()}}, tmp_path / "model.safetensors")
    return tmp_path


def test_tied_tensors_buffers_and_what_is_left_over(tied: Path) -> None:
    checkpoint = Checkpoint(tied, Tied())
    assert checkpoint.unused == ("more.weight",) and checkpoint.missing == ()
    assert checkpoint.check() == "the files hold more.weight, which the model has no place for"
    mine = everything(checkpoint, dtype=torch.float64)
    stored = load_file(tied / "model.safetensors")
    assert torch.equal(mine["head.weight"], stored["embed.weight"].double())
    assert mine["norm.num_batches_tracked"].dtype == torch.int64
    assert checkpoint.bytes("head.weight", {1: ((0, 64), (128, 192))}) == 300 * 128 * 4


def test_what_is_missing_or_has_another_shape_is_named(tied: Path) -> None:
    model = Tied()
    model.extra = torch.nn.Linear(4, 4, device="meta")
    model.norm = torch.nn.BatchNorm1d(9, device="meta")  # the files have 8
    checkpoint = Checkpoint(tied, model)
    assert checkpoint.missing == ("extra.weight", "extra.bias")
    with pytest.raises(ReleaseError, match=r"the files do not hold extra.weight, extra.bias of the model") as error:
        checkpoint.check()
    assert error.value.hint.startswith("the files hold more.weight")
    with pytest.raises(ReleaseError, match=r"norm.weight is stored as \[8\], but the model has \[9\]"):
        checkpoint.check(["norm.weight", "embed.weight"])
    with pytest.raises(ReleaseError, match=r"norm.weight is stored as \[8\], but the model has \[9\]"):
        checkpoint.read({"norm.weight": {}})
    assert "more.weight" in checkpoint.check(["embed.weight"])
    with pytest.raises(UsageError, match=r"ranges \(\(0, 301\),\) of axis 0 are not in \[300, 256\]"):
        checkpoint.read({"embed.weight": {0: ((0, 301),)}})


def test_what_is_longer_in_the_files_is_padded_and_told(tied: Path) -> None:
    model = Tied()
    model.norm = torch.nn.BatchNorm1d(5, device="meta")
    checkpoint = Checkpoint(tied, model)
    assert checkpoint.check().endswith(
        "; of norm.weight, stored as [8], the model takes the first [5] (and 3 more likewise)")
    stored = load_file(tied / "model.safetensors")
    assert torch.equal(everything(checkpoint)["norm.running_var"], stored["norm.running_var"][:5])


def test_another_device_gets_the_same_in_several_batches(tied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The meta device takes tensors as any other; what went there is looked at on its way."""
    from dayzero.runtime.loading import checkpoint as module

    seen: dict[str, torch.Tensor] = {}
    plain = torch.Tensor.to

    def to(tensor: torch.Tensor, *where: Any) -> torch.Tensor:
        seen[f"{len(seen)}"] = tensor.clone()
        return plain(tensor, *where)

    monkeypatch.setattr(module, "_BATCH", 1000)
    monkeypatch.setattr(torch.Tensor, "to", to)
    made = everything(Checkpoint(tied, Tied()), device="meta")
    stored = load_file(tied / "model.safetensors")
    assert {tensor.device.type for tensor in made.values()} == {"meta"}
    assert set(made) == (set(stored) - {"more.weight"}) | {"head.weight"} and next(iter(made)) == "embed.weight"
    assert len(seen) == len(made)
    assert any(torch.equal(each, stored["embed.weight"]) for each in seen.values() if each.dim() == 2)


def test_reads_are_spans_of_the_timeline(tied: Path) -> None:
    with Timeline() as timeline:
        everything(Checkpoint(tied, Tied()), timeline=timeline)
        loads = {each.category: each for each in timeline.overlap()}["load"]
    assert loads.nbytes == 2 * 300 * 256 * 4 + 4 * 8 * 4 + 8  # the tied one twice


def test_operations_that_are_not_known_are_left_to_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A conversion that does more than moving values: all of its sources are read, then it is cut."""
    from transformers import conversion_mapping
    from transformers.core_model_loading import ConversionOps, WeightConverter

    class Doubled(ConversionOps):
        def convert(self, input_dict: Any, source_patterns: Any, target_patterns: Any, **_: Any) -> Any:
            return {target_patterns[0]: next(iter(input_dict.values()))[0] * 2}

    config = AutoConfig.for_model("llama", hidden_size=16, intermediate_size=8, num_hidden_layers=1,
                                  num_attention_heads=2, num_key_value_heads=2, vocab_size=32)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    plain = conversion_mapping.get_model_conversion_mapping
    monkeypatch.setattr(conversion_mapping, "get_model_conversion_mapping", lambda model: [
        *plain(model), WeightConverter("mlp.down_proj.weight", "mlp.down_proj.weight", [Doubled()])])
    checkpoint = Checkpoint(tmp_path, empty(tmp_path))
    name = "model.layers.0.mlp.down_proj.weight"
    assert torch.equal(everything(checkpoint)[name], stored[name] * 2)
    out = torch.empty(4, 3)
    checkpoint.fill(name, {0: ((0, 2), (8, 10)), 1: ((5, 8),)}, out)
    assert torch.equal(out, (stored[name] * 2)[[0, 1, 8, 9], 5:8])
    assert checkpoint.bytes(name, {0: ((0, 1),)}) == 16 * 8 * 4


def test_a_config_that_is_none_is_told(tied: Path) -> None:
    (tied / "config.json").write_text(json.dumps([1]))
    with pytest.raises(ReleaseError, match=r"config.json is not a JSON object"):
        Checkpoint(tied, Tied())
