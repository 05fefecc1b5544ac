"""The suite passes what is right and fails, by name, what is deliberately wrong."""

from __future__ import annotations

import pytest
from tests.support.python import run_python

from dayzero.backends.simulated import build
from dayzero.errors import NotPossible, UsageError
from dayzero.runtime.conformance import CHECKS, check_backend

pytest.importorskip("torch")
CHECK = """
import contextlib, json
import torch
from dayzero.backends.cpu import CpuBackend
from dayzero.backends.streams import ThreadStream
from dayzero.runtime.conformance import check_backend

def failing(backend, *checks):
    return {each.check: each.detail for each in check_backend(backend, checks).outcomes if each.status == "fail"}
"""
SIMULATED = CHECK + """
from dayzero.backends.simulated import SimulatedBackend

class Broken(SimulatedBackend):
    name = "broken"

backend = Broken()

@contextlib.contextmanager
def replaced(op, function):
    library = torch.library.Library("aten", "IMPL")
    library.impl(op, function, "PrivateUse1")
    yield
    library._destroy()

backend.device()
"""


def test_right_ones_pass_what_is_quick() -> None:
    found = check_backend("cpu", ("device", "cap", "copies", "streams", "operators", "coverage", "layouts"))
    assert found.passed, [each for each in found.outcomes if each.status == "fail"]
    assert [each.check for each in found.outcomes if each.status == "skip"] == ["coverage/denied"]


def test_what_is_unknown_is_refused() -> None:
    with pytest.raises(UsageError, match="no check is named 'memry'"):
        check_backend("cpu", ("memry",))
    with pytest.raises(UsageError, match="no backend is named 'cpuu'"):
        check_backend("cpuu")


def test_a_backend_that_cannot_be_used_is_not_a_failure() -> None:
    from dayzero.backends.unusable import Unusable

    with pytest.raises(NotPossible, match="backend x cannot be used here: no card"):
        check_backend(Unusable("x", "no card"))


def test_every_check_is_described() -> None:
    assert all(CHECKS.values())


@pytest.mark.slow
def test_backends_of_the_host_that_break_the_protocol() -> None:
    told = run_python(CHECK + """
class Early(ThreadStream):
    def wait(self, other): pass

class Impatient(CpuBackend):
    def stream(self, index=0): return Early()

class Forgetful(CpuBackend):
    @contextlib.contextmanager
    def optimizations(self, model=None, **wanted):
        with super().optimizations(model, **wanted) as chosen:
            yield chosen
        torch.backends.cuda.enable_flash_sdp(False)

class Lax(CpuBackend):
    def memory(self, index=0):
        memory = super().memory(index)
        memory.cap = lambda size: None
        return memory

class Wrong(CpuBackend):
    def device(self, index=0): return torch.device("meta")

class Greedy(CpuBackend):
    def parallel_plan(self, layout, described=None):
        import msgspec
        plan = super().parallel_plan(layout, described)
        return msgspec.structs.replace(plan, devices=plan.devices[:1])

print(json.dumps([failing(Impatient(), "streams"), failing(Forgetful(), "optimizations"), failing(Lax(), "cap"),
                  failing(Wrong(), "device"), failing(Greedy(), "layouts")]))
""")
    streams, choices, cap, device, layouts = told
    assert list(streams) == ["streams/wait"]
    assert "where the other wrote 2" in streams["streams/wait"]
    assert choices == {"optimizations/attention=eager": "not as before: flash True -> False"}  # later ones begin so
    assert list(cap) == ["cap"] and "under a cap of" in cap["cap"]
    assert device == {"device": "device 0 is of type meta, not cpu"}
    assert layouts == {"layouts": "2 ranks have 1 devices"}


@pytest.mark.slow
@pytest.mark.skipif(bool(build.lacking()), reason=build.lacking() or "it can be built")
def test_devices_that_compute_wrongly_or_keep_memory() -> None:
    told = run_python(SIMULATED + """
def wrong(left, right):
    return (left.cpu() @ right.cpu() * 1.001).to(left.device)

kept = []
def leaking(x):
    kept.append(torch.relu(x.cpu()).to(x.device))
    return kept[-1].clone()

found = [failing(backend, "operators", "models", "memory")]
with replaced("mm", wrong):
    found.append(failing(backend, "operators", "models"))
with replaced("relu", leaking):
    found.append(failing(backend, "memory"))
kept.clear()
found.append(failing(backend, "memory"))

class Liar(SimulatedBackend):
    name = "liar"
    def supported(self, op, dtype, tensors=None):
        from dayzero.backends import Known
        return Known(status="native", how="so it says")

found.append(failing(Liar(), "coverage"))
print(json.dumps(found))
""")
    before, wrong, leak, after, liar = told
    assert before == {} and after == {}
    assert {"operators/linear", "models/dense", "models/experts", "models/linear_attention"} <= set(wrong)
    assert wrong["operators/linear"].startswith("f32: off by 1.0e-03 of the result, rounding explains ")
    assert list(leak) == ["memory/operators"] and "are kept after operators" in leak["memory/operators"]
    assert "is said to be native, and falls back" in liar["coverage/said"]
