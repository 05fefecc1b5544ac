"""A run of which only logprobs are known: from where on it is off, and which change of the whole reference says the
same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.support import tiny

from dayzero.runtime.golden.logprobs import Logprobs, entries
from dayzero.runtime.golden.writer import Writer
from dayzero.runtime.substitution.reference import reference
from dayzero.schema import Layout
from dayzero.schema.golden import Origin, RankDump
from dayzero.schema.located import Located, Location
from dayzero.stages.check.locate import locate, words
from dayzero.stages.check.locate.logprobs import told

SEQUENCES = (range(40, 66), range(210, 229))
Fault = Callable[[Any], None]


@pytest.fixture(scope="module")
def dense(tmp_path_factory: Any) -> Any:
    rope = {"rope_type": "default", "rope_theta": 500000.0}
    return tiny.dense(tmp_path_factory.mktemp("dense") / "model", rope_parameters=rope, num_hidden_layers=2)


def served(root: Path, folder: Path, fault: Fault, *, dtype: str = "f32", top: int = 3) -> Path:
    """What a server says of the tokens that has this fault."""
    origin = Origin(release="model", digests={}, engine="http", libraries={}, dtype="F64", device="not known")
    writer = Writer(folder, RankDump(finished=False, origin=origin, layout=Layout(), rank=0, place={}, seed=0,
                                     mode="whole"))
    with reference(root, dtype) as made, torch.no_grad():
        model: Any = made.watched
        fault(model)
        for number, tokens in enumerate(SEQUENCES):
            ids = torch.tensor(list(tokens))
            said = model(input_ids=ids[None]).logits[0, :-1].double().log_softmax(-1)
            best = said.topk(top)
            begun, values = entries(number, ids.numpy(), Logprobs(
                said.gather(1, ids[1:, None])[:, 0].numpy(), best.indices.numpy(), best.values.numpy()))
            writer.begin(begun)
            for entry, data in values:
                writer.add(entry, data)
    writer.finish()
    return folder


def found(location: Location) -> Located:
    assert location.first is not None
    return location.first


def right(model: Any) -> None:
    pass


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_another_rotary_base_is_off_behind_the_first_token_and_found(dense: Path, tmp_path: Path, dtype: str) -> None:
    def fault(model: Any) -> None:
        model.model.rotary_emb.inv_freq.copy_(1 / 10000 ** (torch.arange(0, 16, 2) / 16))
    noise = [served(dense, tmp_path / "right", right)] if dtype == "f32" else []
    location = locate(dense, served(dense, tmp_path / "dump", fault, dtype=dtype), noise=noise)
    first = found(location)
    if dtype == "f32":
        assert first.patterns[0].first == 1 and "the first token is right" in first.patterns[0].words
    else:  # small changes of the first tokens are within what bf16 does
        assert first.patterns[0].first >= 1 and "config" not in first.patterns[0].words
    assert first.cause is not None and first.cause.name == "config: rope_parameters.rope_theta"
    assert first.cause.explained > 0.98 and not first.nearest
    told = words.to_contract(location)
    assert not told["passed"] and told["suspicion"]["name"] == "config: rope_parameters.rope_theta"


def test_a_right_server_is_not_called_wrong(dense: Path, tmp_path: Path) -> None:
    for dtype in ("f32", "bf16"):
        location = locate(dense, served(dense, tmp_path / dtype, right, dtype=dtype))
        assert not location.guilty and words.to_contract(location)["passed"]


def test_what_was_not_said_counts_for_nothing() -> None:
    said = Logprobs(np.array([-1.0, np.nan]), np.array([[5, -1], [4, 2]]), np.array([[-0.5, -np.inf], [-0.1, -3.0]]))
    made = told(np.array([9, 3, 7]), said)
    assert made.tokens.tolist() == [[3, 5, 0], [7, 4, 2]]
    apart = made.filled(np.zeros((2, 3)))
    assert apart.tolist() == [[-1.0, -0.5, 0.0], [0.0, -0.1, -3.0]]
