"""The recorder on modules made for it: values that are asked for, operators without shape rules, module paths."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from dayzero.data.operators import operators
from dayzero.stages.trace.capture import Recorder


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


def recorded(model: torch.nn.Module, *args: torch.Tensor, **kwargs: int) -> tuple[Recorder, torch.Tensor]:
    recorder = Recorder(model, operators(), **kwargs)
    with torch.inference_mode(), recorder:
        recorder.phase, recorder.tokens = "prefill", 4
        return recorder, model(*args)


def test_values_are_assumed_and_the_places_are_told() -> None:
    x, mask = torch.empty(4, device="meta"), torch.empty(8, 2, 4, dtype=torch.bool, device="meta")
    recorder, _ = recorded(Routed(), x, mask, experts=8, top_k=2)
    sites: Counter[tuple[str, str]] = Counter()
    for site in recorder.control_flow():
        sites[site.kind, site.assumed] += site.times
    assert sites["item", "True"] == 1  # all(): takes the plain path
    assert sites["item", "False"] == 1 + 8  # any(), and the comparison of each expert's number
    assert sites["nonzero", "8 of 8"] == 1  # 4 tokens with 2 experts each hit all 8
    assert sites["nonzero", "1 of 8"] == 8  # 8 routes spread over 8 experts
    ops = [call.op for call in recorder.operators()]
    assert ops.count("aten.mul") == 0 and "aten.add" in ops
    assert all(site.executed and site.line > 0 and not site.file.startswith("/") for site in recorder.control_flow())
    assert {site.file.rpartition("/")[2] for site in recorder.control_flow()} == {"test_capture.py"}


def test_without_experts_all_elements_are_hits() -> None:
    x, mask = torch.empty(4, device="meta"), torch.empty(3, 2, 4, dtype=torch.bool, device="meta")
    recorder, _ = recorded(Routed(), x, mask)
    assert {site.assumed for site in recorder.control_flow() if site.kind == "nonzero"} == {"3 of 3", "8 of 8"}


def test_few_tokens_hit_few_experts() -> None:
    x, mask = torch.empty(4, device="meta"), torch.empty(64, 2, 4, dtype=torch.bool, device="meta")
    recorder, _ = recorded(Routed(), x, mask, experts=64, top_k=2)
    assert "8 of 64" in {site.assumed for site in recorder.control_flow()}


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
    recorder, out = recorded(Nested(), torch.empty(2, 4, device="meta"))
    calls = {(call.op, call.module): call for call in recorder.operators()}
    assert calls["aten.mm", "first"].count == 3
    assert calls["aten.mm", "first"].flops == 3 * 2 * 2 * 4 * 4
    assert calls["aten.relu", ""].module_type == "Nested"
    assert out.shape == (2, 4)


def test_nothing_is_recorded_outside_a_phase() -> None:
    recorder = Recorder(Nested(), operators())
    with recorder:
        torch.empty(2, 4, device="meta").relu()
    assert recorder.operators() == ()


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

    recorder, out = recorded(Model(), torch.empty(6, 4, device="meta"))
    assert out.shape == (3, 4) and out.device.type == "meta"
    [entry] = recorder.missing()
    assert entry.startswith("dayzero_test.halve (no shape rule") and "test_capture.py:" in entry
    assert [call.kind for call in recorder.operators() if call.op == "dayzero_test.halve"] == ["other"]


def test_an_operator_that_cannot_be_run_either_ends_the_trace_and_is_named(library) -> None:
    library.define("nothing(Tensor x) -> Tensor")

    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.ops.dayzero_test.nothing(x)

    recorder = Recorder(Model(), operators())
    with pytest.raises(NotImplementedError) as caught, torch.inference_mode(), recorder:
        Model()(torch.empty(2, device="meta"))
    assert recorder.describe(caught.value).startswith("dayzero_test.nothing in the model itself: ")
