"""What every backend gets from torch, on the host: memory, streams, operators, choices, plans."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping

import pytest

from dayzero.backends import Known, TorchBackend, chosen
from dayzero.backends.cpu import BACKEND as CPU
from dayzero.backends.cuda import BACKEND as CUDA
from dayzero.errors import NotPossible, UsageError
from dayzero.schema import Device, Layout, Link

torch = pytest.importorskip("torch")
MIB = 1 << 20


def test_memory_of_the_host() -> None:
    memory = CPU.memory()
    memory.empty_cache()  # else it is taken from what other tests have left
    before = memory.used()
    held = torch.ones(64 * MIB, dtype=torch.uint8)
    assert 60 * MIB <= memory.used() - before <= 80 * MIB
    assert memory.peak() >= memory.used()
    del held
    memory.empty_cache()
    assert memory.used() - before <= 8 * MIB
    with pytest.raises(UsageError, match="not a size of memory: 0 bytes"):
        memory.cap(0)


def test_a_cap_of_the_host_ends() -> None:
    memory = CPU.memory()
    memory.empty_cache()
    memory.cap(memory.used() + 50 * MIB)
    try:
        assert abs(memory.free() - 50 * MIB) <= 4 * MIB
        with pytest.raises(RuntimeError, match="can't allocate memory"):  # stacks of threads that end give room back
            torch.ones(400 * MIB, dtype=torch.uint8)
    finally:
        memory.cap(None)
    assert memory.free() > 100 * MIB
    assert torch.ones(100 * MIB, dtype=torch.uint8).numel() == 100 * MIB


def test_a_thread_is_a_stream() -> None:
    first, second = CPU.stream(), CPU.stream()
    order: list[int] = []

    def slow() -> None:
        time.sleep(0.05)
        order.append(1)

    begin = time.perf_counter()
    first.run(slow)
    second.wait(first)
    future = second.run(lambda: order.append(2) or threading.current_thread())
    assert time.perf_counter() - begin < 0.04  # nobody waited for it
    assert future.result() is not threading.current_thread()
    assert order == [1, 2]
    with torch.inference_mode():
        assert first.run(torch.is_inference_mode_enabled).result()
    assert not first.run(torch.is_inference_mode_enabled).result()


def test_errors_of_a_stream_are_told_once_somebody_waits() -> None:
    stream = CPU.stream()

    def work() -> None:
        raise ArithmeticError("on purpose")

    stream.run(work)
    with pytest.raises(ArithmeticError, match="on purpose"):
        stream.synchronize()


def test_operators_are_looked_up_in_torch_or_a_list() -> None:
    assert CPU.supported("aten.mm", "bf16", 2).status == "native"
    assert CPU.supported("aten.clone", "f32").status == "composite"
    assert CPU.supported("nobody.thing", "f32").status == "unknown"

    class Listed(TorchBackend):
        name = device_type = "fpga9"

        def operators(self) -> Mapping[str, tuple[str, ...]]:
            return {"aten.mm": ("bf16",)}

    listed = Listed()
    assert listed.supported("aten.mm", "bf16") == Known(status="native", how="the list of backend fpga9")
    assert [listed.supported(*each).status for each in (("aten.mm", "f32"), ("aten.add", "f32"))] == ["none", "none"]
    assert listed.available()
    with pytest.raises(NotPossible, match="backend fpga9 cannot be used here"):
        listed.device()


def test_devices_that_there_are_not() -> None:
    with pytest.raises(UsageError, match="backend cpu has no device 10000"):
        CPU.device(10000)
    if not CUDA.is_available():
        for call in (CUDA.device, CUDA.memory, CUDA.stream, CUDA.collectives):
            with pytest.raises(NotPossible, match="backend cuda cannot be used here"):
                call()


def test_choices() -> None:
    assert CPU.choices() == {"attention": ("eager", "sdpa", "flash"), "norm": ("plain", "fused"),
                             "kv_cache": ("dynamic", "paged"), "linear": ("library", "onednn")}
    with (pytest.raises(UsageError, match="backend cpu has no attention 'flsh'") as caught,
          CPU.optimizations(attention="flsh")):
        pass
    assert caught.value.hint == 'did you mean "flash"? it has: eager, sdpa, flash'
    with CPU.optimizations(attention="flash", norm="fused") as outer:
        assert (outer, chosen().kv_cache) == (chosen(), "")
        with CPU.optimizations(attention="eager", kv_cache="paged"):
            assert (chosen().attention, chosen().norm, chosen().kv_cache) == ("eager", "fused", "paged")
        assert chosen() == outer
    assert not any(getattr(chosen(), what) for what in ("attention", "norm", "kv_cache"))


def test_flash_is_really_the_only_kernel() -> None:
    query = torch.randn(1, 1, 4, 8)
    attention = torch.nn.functional.scaled_dot_product_attention

    def used() -> set[str]:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
            attention(query, query, query)
        return {event.key for event in seen.key_averages()}

    with CPU.optimizations(attention="flash"):
        assert "aten::_scaled_dot_product_flash_attention_for_cpu" in used()
        with pytest.raises(RuntimeError, match="No available kernel"):  # flash computes no dropout on the host
            attention(query, query, query, dropout_p=0.5)
    with CPU.optimizations(attention="eager"):
        assert "aten::_scaled_dot_product_attention_math" in used()


def test_layouts() -> None:
    link = Link(name="fast", devices=2, bandwidth=9e9, latency=1e-6, source="s")
    far = Link(name="slow", devices=8, bandwidth=1e9, latency=1e-6, source="s")
    device = Device(name="x", vendor="", arch="", memory_bytes=1, memory_bandwidth=1e9, flops={}, links=(far, link))

    class Four(TorchBackend):
        name, device_type, device_count = "four", "cpu", 4

    plan = Four().parallel_plan(Layout(tp=2, pp=2), device)
    assert (plan.reason, plan.devices, plan.tp, plan.staged) == ("", (0, 1, 2, 3), 2, True)
    assert Four().parallel_plan(Layout(tp=8)).reason == "8 ranks need as many devices, and backend four has 4"
    assert len(CPU.parallel_plan(Layout(tp=8)).devices) == 8
    assert CPU.parallel_plan(Layout()).tp == 0
    if not CUDA.is_available():
        assert CUDA.parallel_plan(Layout()).reason == "backend cuda has no device here"
