"""Multi-token prediction: declared against stored."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from tests.support import tiny_release as tiny
from tests.support.told import Told, teller

from dayzero.errors import ReleaseError

ONE = tiny.CONFIG | {"num_nextn_predict_layers": 1}


@pytest.fixture
def tell(tmp_path: Path) -> Told:
    return teller(tmp_path, "mtp-absent", "mtp-undeclared", "weights-unexpected")


def layer(number: int = 12, at: str = "model.layers", *, projection: bool = True, block: bool = True) -> tiny.Tensors:
    """A prediction layer: a decoder layer behind a projection of hidden state and embedding."""
    found: tiny.Tensors = {f"{at}.{number}.enorm.weight": ((64,), "BF16")}
    if projection:
        found[f"{at}.{number}.eh_proj.weight"] = ((64, 128), "BF16")
    if block:
        found |= {f"{at}.{number}.self_attn.q_proj.weight": ((144, 64), "BF16"),
                  f"{at}.{number}.mlp.up_proj.weight": ((96, 64), "BF16")}
    return found


@pytest.mark.parametrize(("speculative", "severity"), [(None, "warning"), ("none", "warning"), ("mtp", "error")])
def test_declared_and_in_no_file(tell: Told, speculative: str | None, severity: str) -> None:
    # modelscope/ms-swift#7848: 94 layers, num_nextn_predict_layers = 1, no layer 94
    [found] = tell(tiny.dense_tensors(), ONE, speculative=speculative)
    assert (found.rule, found.severity, found.facts["layer"]) == ("mtp-absent", severity, 12)
    assert "num_nextn_predict_layers" in found.subject and "layers.12" in found.subject


@pytest.mark.parametrize(("tensors", "config"), [
    (layer(), ONE), (layer(0, "mtp.layers"), tiny.CONFIG | {"mtp_num_hidden_layers": 1}),
    (layer(0, "model.mtp_layers"), ONE), ({}, tiny.CONFIG), ({}, tiny.CONFIG | {"num_nextn_predict_layers": 0}),
    ({}, tiny.CONFIG | {"num_mtp_modules": 3, "use_mtp": False}),
    (layer() | layer(13), tiny.CONFIG | {"num_nextn_predict_layers": 2}),
])
def test_in_order(tell: Told, tensors: tiny.Tensors, config: dict[str, object]) -> None:
    assert tell(tiny.dense_tensors() | tensors, config, speculative="mtp") == []


@pytest.mark.parametrize(("tensors", "config", "missing"), [
    (layer(), tiny.CONFIG | {"num_nextn_predict_layers": 2}, 13),
    ({}, tiny.CONFIG | {"num_mtp_modules": 3, "use_mtp": True}, 12),
    (layer(block=False), ONE, 12),  # a quantiser wrote the norms and the projection, and forgot the block
    (layer(projection=False), ONE, 12),
])
def test_the_first_layer_that_is_not_whole(tell: Told, tensors: tiny.Tensors, config: dict[str, object],
                                           missing: int) -> None:
    [found] = tell(tiny.dense_tensors() | tensors, config, speculative="mtp")
    assert (found.rule, found.severity, found.facts["layer"]) == ("mtp-absent", "error", missing)


def test_a_sample_proves_nothing_unless_the_engine_names_one(tell: Told) -> None:
    tensors = {name: what for name, what in tiny.dense_tensors().items() if ".3." in name}
    assert tell(tensors, ONE, partial=True, speculative="mtp") == []
    declares = {"model.layers.12.eh_proj.weight": ([64, 128], "BF16")}
    [found] = tell(tensors, ONE, partial=True, speculative="mtp", declares=declares)
    assert found.facts["layer"] == 12


@pytest.mark.parametrize(("tensors", "config", "number", "subject"), [
    (layer(), tiny.CONFIG, 12, "model.layers.12"), (layer() | layer(13), ONE, 13, "model.layers.13"),
    (layer(), tiny.CONFIG | {"num_nextn_predict_layers": 0}, 12, "num_nextn_predict_layers"),
    (layer(0, "mtp.layers") | {"mtp.fc.weight": ((64, 128), "BF16")}, tiny.CONFIG, 12, "mtp.layers.0"),
])
def test_stored_and_not_declared(tell: Told, tensors: tiny.Tensors, config: dict[str, object], number: int,
                                 subject: str) -> None:
    [found] = tell(tiny.dense_tensors() | tensors, config)
    assert (found.rule, found.severity, found.facts["layer"]) == ("mtp-undeclared", "warning", number)
    assert subject in found.subject


def test_a_plain_layer_beyond_the_count_is_no_prediction_layer(tell: Told) -> None:
    [found] = tell(tiny.dense_tensors() | layer(projection=False), tiny.CONFIG)
    assert (found.rule, found.severity) == ("weights-unexpected", "error")


def test_numbers_that_no_model_has(tell: Told) -> None:
    with pytest.raises(ReleaseError, match="num_nextn_predict_layers is 100000000, not an integer"):
        tell(tiny.dense_tensors(), tiny.CONFIG | {"num_nextn_predict_layers": 10**8})


def test_many_stored_layers_take_linear_time(tell: Told) -> None:
    many: tiny.Tensors = {f"model.layers.{number}.mlp.x{number}.weight": ((1,), "BF16") for number in range(12, 3000)}
    started = time.process_time()
    assert [found.rule for found in tell(tiny.dense_tensors() | many, tiny.CONFIG)] == ["weights-unexpected"]
    assert time.process_time() - started < 4  # a third of a second; ten with one loop inside another


def test_a_key_without_a_name_declares_nothing(tell: Told) -> None:
    assert tell(tiny.dense_tensors(), tiny.CONFIG | {"": 2**40}) == []
