"""The parts of recording: kinds by structure, rows, samples, statistics, axes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from dayzero.errors import UsageError
from dayzero.runtime.golden.dump import positions
from dayzero.runtime.golden.logprobs import statistics
from dayzero.runtime.recording.kinds import kinds, selected
from dayzero.runtime.recording.rows import Sequences, runs
from dayzero.runtime.recording.sampling import Sampling
from dayzero.runtime.recording.statistics import _masked, _of_masked, measured
from dayzero.runtime.recording.values import Local, arguments, by_rows, slots, variant
from dayzero.schema.golden import Held, Rows


class Expert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, hidden: Any) -> Any:
        return self.down(self.up(hidden).relu())


class Chooser(nn.Module):
    """Scores for four experts, by a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.ones(4, 8))

    def forward(self, hidden: Any) -> Any:
        return hidden @ self.table.T


class Mixture(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = Chooser(), nn.ModuleList(Expert() for _ in range(4)), Expert()

    def forward(self, hidden: Any) -> Any:
        return hidden


class Mixer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.p = nn.Linear(8, 8)
        self.q = nn.Conv1d(8, 8, 3)

    def forward(self, hidden: Any, state: Any = None) -> Any:
        return hidden


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.x, self.y, self.z, self.w = Mixer(), nn.LayerNorm(8), Mixture(), nn.ReLU()

    def forward(self, hidden: Any) -> Any:
        return hidden


class Whole(nn.Module):
    """Nothing in it is named as in any model."""

    def __init__(self) -> None:
        super().__init__()
        self.e, self.blocks, self.angles = nn.Embedding(10, 8), nn.ModuleList(Block() for _ in range(2)), nn.ReLU()


def test_kinds_are_told_by_structure() -> None:
    found = kinds(Whole())
    wanted = {
        "": "model", "e": "embedding", "blocks.0": "layer", "blocks.1.x": "attention", "blocks.0.x.p": "linear",
        "blocks.0.x.q": "other", "blocks.0.y": "norm", "blocks.0.z": "feed_forward", "blocks.0.z.a": "router",
        "blocks.0.z.b": "other", "blocks.0.z.b.3": "experts", "blocks.0.z.c": "feed_forward", "blocks.0.w": "other",
    }  # fmt: skip
    assert {name: found[name] for name in wanted} == wanted


def test_the_default_leaves_out_the_inside_of_experts_and_functions() -> None:
    model = Whole()
    names = selected(model, "default", (), kinds(model))
    assert {"", "e", "angles", "blocks.0.x.q", "blocks.0.z.b.3"} < set(names)
    assert not {"blocks", "blocks.0.w", "blocks.0.z.b", "blocks.0.z.b.3.up"} & set(names)
    assert set(selected(model, ["blocks.*.z", "norm"], (), kinds(model))) == {
        "", "blocks.0.z", "blocks.1.z", "blocks.0.y", "blocks.1.y"}
    assert "blocks.0.w" in selected(model, "leaves", (), kinds(model))
    assert not [name for name in selected(model, "default", [1], kinds(model)) if name.startswith("blocks.0")]


def test_unknown_names_get_a_suggestion() -> None:
    model = Whole()
    with pytest.raises(UsageError) as refused:
        selected(model, ["bloks.0.x"], (), kinds(model))
    assert 'did you mean "blocks.0.x"' in refused.value.hint


@pytest.mark.parametrize(("kind", "settings_"), [
    ("mamba", {"hidden_size": 16, "num_hidden_layers": 2, "vocab_size": 50, "state_size": 4}),
    ("gpt2", {"n_embd": 16, "n_layer": 2, "n_head": 2, "vocab_size": 50})])
def test_other_families(kind: str, settings_: dict[str, Any]) -> None:
    """A state-space model, and one whose linear layers are a class of the library's own with [in, out] weights."""
    from transformers import AutoConfig, AutoModelForCausalLM

    found = kinds(AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **settings_)))
    counts = {each: list(found.values()).count(each) for each in set(found.values())}
    assert (counts["layer"], counts["attention"], counts["head"]) == (2, 2, 1)
    assert counts.get("feed_forward", 0) == (2 if kind == "gpt2" else 0)
    assert counts["linear"] >= 8 - 2 * (kind == "mamba")


@given(st.lists(st.tuples(st.integers(-1, 2), st.integers(0, 5)), max_size=30))
def test_runs_and_positions_are_inverse(rows: list[tuple[int, int]]) -> None:
    sequence = np.array([row[0] for row in rows], dtype=np.int64)
    position = np.array([row[1] for row in rows], dtype=np.int64)
    back = positions(runs(sequence, position))
    real = sequence >= 0
    assert back[:, 0].tolist() == sequence.tolist()
    assert back[real, 1].tolist() == position[real].tolist()


def test_replicas_number_their_sequences_apart() -> None:
    ids = torch.ones((2, 3), dtype=torch.long)
    numbers = [[each.sequence for each in Sequences(first, 2).begin(0, {"input_ids": ids}).rows] for first in (0, 1)]
    assert numbers == [[0, 2], [1, 3]]


def test_embedded_inputs_have_rows_and_no_tokens() -> None:
    made = Sequences().begin(0, {"inputs_embeds": torch.zeros(2, 3, 8)})
    assert (made.shape, len(made.rows), len(made.tokens)) == ((2, 3), 2, 0)
    assert Sequences().begin(0, {"pixels": torch.zeros(2, 3, 8, 8)}).rows == ()


def test_a_cache_of_any_class_is_known_again() -> None:
    class Own:
        pass

    cache, sequences = Own(), Sequences()
    for number, ids in enumerate(([[1, 2, 3]], [[4]], [[5]])):
        made = sequences.begin(number, {"input_ids": torch.tensor(ids), "cache": cache})
        sequences.end({"cache": cache}, {})
        assert (made.rows[0].sequence, made.rows[0].first, made.phase) == (
            0, (0, 3, 4)[number], "decode" if number else "prefill")


def test_flat_tokens_with_positions_are_packed_sequences() -> None:
    made = Sequences().begin(0, {"input_ids": torch.arange(5), "positions": torch.tensor([0, 1, 2, 0, 1])})
    assert made.shape == (1, 5)
    assert [(each.sequence, each.first, each.count) for each in made.rows] == [(0, 0, 3), (1, 0, 2)]


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**31), share=st.floats(0.05, 0.95))
def test_samples_are_as_large_as_asked_and_parts_of_ranks_fit_together(seed: int, share: float) -> None:
    sampling, rows = Sampling(share, share, seed), (Rows(sequence=0, first=0, count=4000),)
    whole = sampling.of((4000, 512), rows, ())
    assert whole is not None and whole.rows is not None and whole.columns is not None
    assert abs(len(whole.rows) / 4000 - share) < 5 * (share * (1 - share) / 4000) ** 0.5
    halves = []
    for first in (0, 256):
        part = sampling.of((4000, 256), rows, (Held(axis=1, size=512, ranges=((first, first + 256),)),))
        assert part is not None and part.columns is not None
        halves += [int(column) + first for column in part.columns.values]
    assert halves == whole.columns.values.tolist()


def test_small_tensors_are_kept_whole() -> None:
    assert Sampling(0.1, 0.1).of((10, 10), None, ()) is None


@pytest.mark.parametrize("dtype", [
    torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.bool])
def test_statistics_against_numpy(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    value = (torch.randn(37, 64) * 5).to(dtype)
    told, wanted = measured(value)(), statistics(value.to(torch.float64).numpy())
    on_device = _of_masked(value.numel(), _masked(value.to(torch.float64)).tolist())
    for name in ("count", "nan", "inf", "minimum", "maximum", "max_abs", "rms"):
        assert getattr(told, name) == pytest.approx(getattr(wanted, name), rel=1e-5), name
        assert getattr(on_device, name) == pytest.approx(getattr(wanted, name), rel=1e-5), name
    assert told.mean == pytest.approx(wanted.mean, rel=1e-3, abs=1e-5)


def test_statistics_of_many_values_and_of_small_ones() -> None:
    torch.manual_seed(0)
    many = torch.randn(2**20 + 5)
    told, wanted = measured(many)(), statistics(many.double().numpy())
    assert (told.count, told.minimum, told.maximum) == (wanted.count, wanted.minimum, wanted.maximum)
    assert (told.rms, told.mean) == (pytest.approx(wanted.rms, rel=1e-5), pytest.approx(wanted.mean, abs=1e-6))
    many[-1] = float("nan")
    assert measured(many)().nan == 1
    assert measured(torch.full((10,), 1e-30))().rms == pytest.approx(1e-30)  # its square is 0 in f32


@pytest.mark.parametrize("odd", [[float("nan"), 1, -2], [float("inf"), -float("inf"), 3], [float("nan")], [3e38, 3e38]])
def test_statistics_of_what_is_no_number(odd: list[float]) -> None:
    value = torch.tensor(odd)
    wanted = statistics(np.array(odd))
    for told in (measured(value)(), _of_masked(len(odd), _masked(value.double()).tolist())):
        assert (told.count, told.nan, told.inf) == (wanted.count, wanted.nan, wanted.inf)
        assert told.rms == pytest.approx(wanted.rms) and told.max_abs == pytest.approx(wanted.max_abs)


@pytest.mark.parametrize(("shape", "batch", "length", "axes", "kept"), [
    ((2, 5, 8), 2, 5, ("token", "channel"), (10, 8)), ((10, 8), 2, 5, ("token", "channel"), (10, 8)),
    ((2, 5, 3, 4), 2, 5, ("token", "dim2", "channel"), (10, 3, 4)),
    ((2, 3, 5, 4), 2, 5, ("token", "dim1", "channel"), (10, 3, 4)),
    ((2, 1, 5, 8), 2, 5, ("token", "dim1", "channel"), (10, 1, 8)),
    ((1, 8, 1), 1, 1, ("token", "channel"), (1, 8)), ((3, 8, 1), 3, 1, ("token", "channel"), (3, 8)),
    ((3, 8), 3, 1, ("token", "channel"), (3, 8)), ((1, 8), 1, 1, ("token", "channel"), (1, 8)),
    ((3, 1, 8), 3, 1, ("token", "channel"), (3, 8)), ((2, 8, 5), 2, 5, ("token", "channel"), (10, 8)),
    ((1, 1, 1, 8), 1, 1, ("token", "dim2", "channel"), (1, 1, 8)),
    ((7, 8), 2, 5, ("dim0", "channel"), (7, 8)), ((2, 5), 0, 0, ("dim0", "channel"), (2, 5)),
    ((), 2, 5, (), ()), ((4,), 2, 5, ("dim0",), (4,))])
def test_rows_are_found(shape: Any, batch: int, length: int, axes: Any, kept: Any) -> None:
    value = torch.randn(shape)
    own, names, last = by_rows(Local(value), batch, length)
    assert (names, tuple(own.value.shape), last) == (axes, kept, False)


def test_of_two_axes_as_long_as_the_tokens_the_outer_one_in_memory_is_theirs() -> None:
    value = torch.arange(4 * 4 * 2.0).view(1, 4, 4, 2)  # [batch, tokens, heads, width]
    seen = by_rows(Local(value.transpose(1, 2)), 1, 4)[0].value
    assert torch.equal(seen, value[0])


def test_a_part_of_the_heads_stays_one() -> None:
    part = torch.zeros(1, 4, 2, 8).transpose(1, 2)  # [batch, heads of this rank, tokens, width]
    own, names, _ = by_rows(Local(part, (Held(axis=1, size=4, ranges=((2, 4),)),)), 1, 4)
    assert names == ("token", "dim1", "channel")
    assert own.held == (Held(axis=1, size=4, ranges=((2, 4),)),)


def test_logits_of_the_last_positions() -> None:
    own, names, last = by_rows(Local(torch.zeros(2, 1, 9)), 2, 5, last=True)
    assert (names, tuple(own.value.shape), last) == (("token", "channel"), (2, 9), True)


def test_arguments_have_the_names_of_the_code() -> None:
    module = Mixer()
    given = torch.zeros(1)
    assert [slot for slot, _ in slots(arguments(module, (given,), {"state": (given, {"k": given})}))] == [
        "hidden", "state.0", "state.1.k"]
    assert variant({"x": given, "kind": "sliding"}) == "sliding"
