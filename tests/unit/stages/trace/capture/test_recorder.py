"""The recorder on modules made for it: values that are asked for, operators without shape rules, module paths."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dayzero.data.operators import operators
from dayzero.schema import OpCall
from dayzero.stages.trace import rows
from dayzero.stages.trace.capture.captured import Captured
from dayzero.stages.trace.capture.recorder import Recorder, cache_of, decode, prefill
from dayzero.stages.trace.capture.step import Step


class Routed(torch.nn.Module):
    """Asks for values the way that loops over experts do."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        if (x == 0).all():
            x = x + 1
        if (x > 5).any():
            x = x * float("nan")
        for hit in mask.sum((1, 2)).gt(0).nonzero():
            if hit[0] == 99:
                continue
            rows, _ = torch.where(mask[0])
            x = x + rows.shape[0]
        return x


class Layer(torch.nn.Module):
    """The same in a module that by its name routes tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.moe = Routed()

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.moe(x, mask)


def recorded(model: torch.nn.Module, *args: torch.Tensor, **kwargs: int) -> tuple[Recorder, Captured, Any]:
    recorder = Recorder(model, operators(), **kwargs)
    out, captured = recorder.run(Step("prefill", 1, 4), lambda: model(*args))
    return recorder, captured, out


def rows_of(recorder: Recorder, captured: Captured) -> tuple[OpCall, ...]:
    return rows.operators(captured, recorder.types, lambda path: path)


def test_values_are_assumed_and_the_places_are_told() -> None:
    x, mask = torch.empty(4, device="meta"), torch.empty(8, 2, 4, dtype=torch.bool, device="meta")
    recorder, captured, _ = recorded(Layer(), x, mask, experts=8, top_k=2)
    found = recorder.sites(captured)
    sites: Counter[tuple[str, str]] = Counter()
    for site, times in found.items():
        sites[site.kind, site.assumed] += times
    assert sites["item", "True"] == 1  # all(): takes the plain path
    assert sites["item", "False"] == 1 + 8  # any(), and the comparison of each expert's number
    assert sites["nonzero", "8 of 8"] == 1  # 4 tokens with 2 experts each hit all 8
    assert sites["nonzero", "1 of 8"] == 8  # 8 routes spread over 8 experts
    ops = [call.op for call in captured.calls]
    assert ops.count("aten.mul") == 0 and "aten.add" in ops
    assert all(site.line > 0 and not site.file.startswith("/") for site in found)
    assert {site.file.rpartition("/")[2] for site in found} == {"test_recorder.py"}


def test_without_experts_all_elements_are_hits() -> None:
    x, mask = torch.empty(4, device="meta"), torch.empty(3, 2, 4, dtype=torch.bool, device="meta")
    recorder, captured, _ = recorded(Routed(), x, mask)
    assert {site.assumed for site in recorder.sites(captured) if site.kind == "nonzero"} == {"3 of 3", "8 of 8"}


def test_few_tokens_hit_few_experts() -> None:
    x, mask = torch.empty(4, device="meta"), torch.empty(64, 2, 4, dtype=torch.bool, device="meta")
    recorder, captured, _ = recorded(Layer(), x, mask, experts=64, top_k=2)
    assert "8 of 64" in {site.assumed for site in recorder.sites(captured)}


class Nested(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(4, 4, bias=False, device="meta")
        self.second = self.first

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = self.first(x)
        return x.relu()


def test_equal_calls_are_counted_and_belong_to_the_innermost_module() -> None:
    recorder, captured, out = recorded(Nested(), torch.empty(2, 4, device="meta"))
    calls = {(call.op, call.module): call for call in rows_of(recorder, captured)}
    assert calls["aten.mm", "first"].count == 3
    assert calls["aten.mm", "first"].flops == 3 * 2 * 2 * 4 * 4
    assert calls["aten.relu", ""].module_type == "Nested"
    assert [call.visit for call in captured.calls if call.op == "aten.mm"] == [0, 1, 2]
    assert out.shape == (2, 4)


def test_a_run_may_be_made_without_being_recorded() -> None:
    model = Nested()
    recorder = Recorder(model, operators())
    x = torch.empty(2, 4, device="meta")
    _, captured = recorder.run(Step("prefill", 1, 2), lambda: model(x), record=False)
    assert captured.calls == ()


def test_calls_of_modules_are_as_before_afterwards() -> None:
    class Failing(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise RuntimeError("no")

    before, model = torch.nn.Module.__call__, torch.nn.Sequential(Nested(), Failing())
    recorder = Recorder(model, operators())
    with pytest.raises(RuntimeError, match="no"):
        recorder.run(Step("prefill", 1, 2), lambda: model(torch.empty(2, 4, device="meta")))
    assert torch.nn.Module.__call__ is before
    x = torch.empty(2, 4, device="meta")
    _, captured = recorder.run(Step("prefill", 1, 2), lambda: model[0](x))
    assert {call.place for call in captured.calls} == {"0", "0.first"}


@pytest.fixture
def library():
    with torch.library._scoped_library("dayzero_test", "FRAGMENT") as scoped:
        yield scoped


def test_an_operator_without_a_shape_rule_is_missing_and_the_trace_goes_on(library) -> None:
    library.define("halve(Tensor x) -> Tensor")
    library.impl("halve", lambda x: x[: x.shape[0] // 2].clone(), "CPU")

    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.ops.dayzero_test.halve(x).relu()

    recorder, captured, out = recorded(Model(), torch.empty(6, 4, device="meta"))
    assert out.shape == (3, 4) and out.device.type == "meta"
    [entry] = recorder.missing()
    assert entry.startswith("dayzero_test.halve (no shape rule") and "test_recorder.py:" in entry
    assert [call.kind for call in captured.calls if call.op == "dayzero_test.halve"] == ["other"]


def test_a_rule_for_shapes_that_knows_one_dtype_only_does_not_end_the_trace() -> None:
    """torch 2.13: `_grouped_mm` on the meta device takes bf16 only, on processors f32 as well."""
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            ends = torch.empty(2, dtype=torch.int32, device="meta")
            experts = torch.empty(2, x.shape[1], 32, dtype=x.dtype, device="meta")
            return torch._grouped_mm(x, experts, offs=ends)

    for dtype in (torch.bfloat16, torch.float32):
        recorder, captured, out = recorded(Model(), torch.empty(6, 16, dtype=dtype, device="meta"))
        assert out.shape == (6, 32) and out.dtype == dtype and recorder.missing() == ()
        assert [call.flops for call in captured.calls if call.kind == "experts"] == [2 * 6 * 16 * 32]


def test_a_wrong_shape_is_told_in_the_words_of_the_first_refusal() -> None:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ x

    with pytest.raises(RuntimeError, match=r"\[2, 3\] X \[2, 3\]"):
        recorded(Model(), torch.empty(2, 3, device="meta"))


def test_operands_of_two_dtypes_that_an_operator_refuses_end_the_trace() -> None:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.dot(x[0], x[0].double())

    with pytest.raises(RuntimeError, match="same dtype"):
        recorded(Model(), torch.empty(3, 3, device="meta"))


def test_an_operator_that_cannot_be_run_either_ends_the_trace_and_is_named(library) -> None:
    library.define("nothing(Tensor x) -> Tensor")

    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.ops.dayzero_test.nothing(x)

    recorder = Recorder(Model(), operators())
    with pytest.raises(NotImplementedError) as caught:
        recorder.run(Step("prefill", 1, 2), lambda: Model()(torch.empty(2, device="meta")))
    assert recorder.describe(caught.value).startswith("dayzero_test.nothing in the model itself: ")


class Cached(torch.nn.Module):
    """Takes its cache under a name of its own and drops what it does not know."""

    def forward(self, input_ids: torch.Tensor, cache_params: Any = None, use_cache: bool = True, **kwargs: Any) -> Any:
        return SimpleNamespace(logits=input_ids, cache_params=cache_params or "made", given=cache_params, rest=kwargs)


def test_the_cache_goes_where_the_model_takes_it() -> None:
    cache = cache_of(prefill(Cached(), 2, 3))
    out = decode(Cached(), 2, cache)
    assert cache == "made" == out.given and not out.rest and out.logits.shape == (2, 1)
    with pytest.raises(LookupError, match="no cache"):
        decode(Cached(), 2, cache_of(SimpleNamespace(logits=None)))


@pytest.mark.parametrize("name", ["mamba", "mamba2", "falcon_mamba", "rwkv"])
@pytest.mark.filterwarnings("ignore")
def test_decode_of_a_state_space_continues_from_the_state(name: str) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "vocab_size": 50, "state_size": 8, "attention_hidden_size": 32}
    sizes |= {"num_heads": 4, "head_dim": 16, "expand": 2, "n_groups": 1} if name == "mamba2" else {}
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(name, **sizes)).eval()
    recorder = Recorder(model, operators())
    out, _ = recorder.run(Step("prefill", 1, 5), lambda: prefill(model, 1, 5))
    _, with_state = recorder.run(Step("decode", 1, 1, 5), lambda: decode(model, 1, cache_of(out)))
    _, without = recorder.run(Step("prefill", 1, 1), lambda: prefill(model, 1, 1))
    assert [call[:1] + call[5:8] for call in with_state.calls] != [call[:1] + call[5:8] for call in without.calls]
