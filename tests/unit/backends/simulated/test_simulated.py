"""The simulated accelerator: its memory, its counts, what it lacks, and what is written to it."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.support.python import run_python

from dayzero.backends.simulated import build
from dayzero.errors import NotPossible

pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(bool(build.lacking()), reason=build.lacking() or "it can be built")
START = """
import gc, json, warnings
import torch
from dayzero.backends import backends
from dayzero.errors import UsageError, NotPossible
backend = backends().get("simulated")
device = backend.device(1)
"""


def test_memory_is_limited_and_given_back() -> None:
    told = run_python(START + """
memory = backend.memory(1)
found = {"total": memory.total(), "start": memory.used()}
held = torch.zeros(1000, device=device)
view = held[10:]
found["held"] = memory.used()
found["other"] = backend.memory(0).used()
try:
    torch.zeros(300_000, device=device)
except torch.OutOfMemoryError as error:
    found["refused"] = str(error)
del held
found["viewed"] = memory.used()
del view
gc.collect()
found["end"], found["peak"] = memory.used(), memory.peak()
memory.cap(100)
found["capped"] = [memory.total(), memory.free()]
memory.cap(None)
found["uncapped"] = memory.total()
found["accelerator"] = torch.accelerator.current_accelerator().type
print(json.dumps(found))
""", DAYZERO_SIMULATED_MEMORY="1MB")
    assert "device 1 is out of memory: 1200000 bytes are asked for, 4000 of 1000000" in told.pop("refused")
    assert told == {"total": 1_000_000, "start": 0, "held": 4000, "other": 0, "viewed": 4000, "end": 0, "peak": 4000,
                    "capped": [100, 100], "uncapped": 1_000_000, "accelerator": "simulated"}


def test_a_denied_operator_falls_back_with_one_warning_that_names_it() -> None:
    told = run_python(START + """
values = torch.tensor([[3.0, 1.0, 2.0]])
there = values.to(device)
found = {"said": [backend.supported("aten.topk", "f32").status, backend.supported("aten.mm", "bf16").status,
                  backend.supported("aten.mm", "f32").status, backend.supported("aten.lgamma", "f32").status]}
backend.forget()
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    found["values"] = [there.topk(2).values.tolist() for _ in range(2)]
    there @ there.T
    found["bf16"] = (there.bfloat16() @ there.bfloat16().T).tolist()
found["warned"] = [str(each.message).partition(" is not")[0] for each in caught]
native, fallback = backend.calls()
found["fallback"], found["mm"] = fallback, native["aten::mm"]
with backend.denying(["aten.relu"], fallback=False):
    for call in (torch.relu, torch.lgamma, lambda x: x.topk(1)):
        try:
            call(there)
            found.setdefault("raised", []).append("")
        except NotImplementedError as error:
            found.setdefault("raised", []).append(str(error).partition(" is not")[0])
found["after"] = backend.supported("aten.relu", "f32").status
print(json.dumps(found))
""", DAYZERO_SIMULATED_DENY="aten.topk, aten.mm/bf16")
    assert told == {
        "said": ["fallback", "fallback", "native", "fallback"], "values": [[[3.0, 2.0]]] * 2, "bf16": [[14.0]],
        "warned": ["operator aten::topk", "operator aten::mm"], "fallback": {"aten::topk": 2, "aten::mm": 1}, "mm": 1,
        "raised": ["operator aten::relu", "operator aten::lgamma.out", "operator aten::topk"], "after": "native"}


def test_what_cannot_be_denied_is_refused() -> None:
    told = run_python(START + """
found = []
for name in ("aten.empty", "aten.embedding", "aten.tpk", "nobody.thing", "aten.mm/bf17", "mm"):
    try:
        with backend.denying([name]):
            found.append("accepted")
    except UsageError as error:
        found.append(error.message)
with backend.denying(["aten.add.Tensor"]):
    found.append("accepted")
print(json.dumps(found))
""")
    none = "the device has no kernel of its own for it"
    assert told == [
        "cannot deny aten.empty: without it a device holds no tensor", f"cannot deny aten.embedding: {none}",
        f"cannot deny aten.tpk: {none}", f"cannot deny nobody.thing: {none}",
        "cannot deny aten.mm/bf17: bf17 is no dtype", "DAYZERO_SIMULATED_DENY: 'mm' is no operator", "accepted"]


def test_writes_reach_the_memory_of_the_device() -> None:
    """In-place, through views, into results that grow, by indices, by storage."""
    told = run_python(START + """
def same(work):
    host = torch.arange(12.0).reshape(3, 4)
    there = host.to(device)
    return torch.equal(work(host.clone()), work(there).cpu())

def out(x):
    made = torch.empty(0, device=x.device)
    torch.add(x, x, out=made)
    return made

def put(x):
    x[torch.tensor([0, 2], device=x.device), 1] = 7
    x.T[1:3].mul_(2)
    x[x > 6] = -1
    return x

def resize(x):
    return x.resize_(2, 3).add_(1)

def stored(x):
    made = torch.empty(0, device=x.device)
    made.set_(x.untyped_storage(), 4, (2, 2), (1, 2))
    made += 1
    return x

works = {"out": out, "put": put, "resize": resize, "stored": stored,
         "cat": lambda x: torch.cat([x, x[:1]]),
         "conv": lambda x: torch.conv1d(x[None], torch.ones_like(x[None, :, :2])),
         "sort": lambda x: x.sort(descending=True).indices, "split": lambda x: torch.stack(x.split(1)).squeeze(),
         "unfold": lambda x: x.unfold(1, 2, 1).contiguous(), "complex": lambda x: torch.view_as_real(
             torch.view_as_complex(x.reshape(3, 2, 2)) * 1j)}
print(json.dumps([name for name, work in works.items() if not same(work)]))
""")
    assert told == []


@pytest.mark.slow
def test_gradients_streams_and_calls() -> None:
    told = run_python(START + """
weight = torch.ones(3, 3, device=device, requires_grad=True)
((weight @ weight).relu() ** 2).sum().backward()
host = torch.ones(3, 3, requires_grad=True)
((host @ host).relu() ** 2).sum().backward()
stream = backend.stream(1)
with stream.stream:
    inside = torch.accelerator.current_stream(device) == stream.stream
start, end = (torch.Event(device="simulated", enable_timing=True) for _ in range(2))
start.record()
backend.forget()
for _ in range(5):
    weight.detach().sin()
end.record()
print(json.dumps([torch.equal(weight.grad.cpu(), host.grad), inside, start.elapsed_time(end) > 0,
                  backend.calls()[0]["aten::sin"], backend.device_count]))
""", DAYZERO_SIMULATED_DEVICES="3")
    assert told == [True, True, True, 5, 3]


@pytest.mark.slow
def test_whole_numbers_are_counted_as_accelerators_do() -> None:
    """As the library's experts ask for it on every device but the host."""
    told = run_python(START + """
chosen = torch.tensor([3, 0, 3, 5, 9], device=device)
found = [torch.histc(chosen.to(dtype), bins=6, min=0, max=5) for dtype in (torch.int32, torch.int64, torch.float32)]
print(json.dumps([[str(each.dtype), each.device.type, each.tolist()] for each in found]))
""")
    assert told == [[f"torch.{dtype}", "simulated", [1, 0, 0, 2, 0, 1]] for dtype in ("int32", "int64", "float32")]


@pytest.mark.slow
def test_a_model_that_needs_more_than_there_is_raises() -> None:
    told = run_python(START + """
from transformers import AutoConfig, AutoModelForCausalLM
config = AutoConfig.for_model("qwen3", vocab_size=256, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
                              num_attention_heads=4, num_key_value_heads=2, head_dim=16, tie_word_embeddings=False)
model = AutoModelForCausalLM.from_config(config)
size = sum(each.numel() * 4 for each in model.parameters())
backend.memory(1).cap(size - 1)
try:
    model.to(device)
    found = ["fits"]
except torch.OutOfMemoryError as error:
    found = ["refused"]
del model
gc.collect()
found.append(backend.memory(1).used())
backend.memory(1).cap(size + 100_000)
model = AutoModelForCausalLM.from_config(config).to(device)
model(torch.tensor([[1, 2, 3]], device=device))
print(json.dumps(found + [backend.memory(1).peak() > size]))
""")
    assert told == ["refused", 0, True]


@pytest.mark.slow
def test_another_device_type_in_its_place_is_an_error() -> None:
    told = run_python("""
import json, torch
from dayzero.backends import backends
from dayzero.errors import NotPossible
torch.utils.rename_privateuse1_backend("npu9")
try:
    backends().get("simulated").device()
    print(json.dumps("given"))
except NotPossible as error:
    print(json.dumps(error.reason))
""")
    assert told == "torch holds one device type of others in a process, which is npu9"


def test_without_a_compiler_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from dayzero.backends.simulated import BACKEND

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    assert BACKEND.available() == "it is built by g++ and ninja, which are missing"
    assert (BACKEND.device_count, BACKEND.describe(), BACKEND.is_available()) == (0, {}, False)
    with pytest.raises(NotPossible, match="cannot be built: it is built by g\\+\\+ and ninja, which are missing"):
        BACKEND.device()


@pytest.mark.slow
def test_what_does_not_compile_says_why_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "device.cpp"
    broken.write_text("int f() { return no_such_thing; }\n")
    monkeypatch.setattr(build, "SOURCE", broken)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(NotPossible, match="no_such_thing"):
        build.built()
    assert not list((tmp_path / "cache").rglob("*.so")) and not list((tmp_path / "cache").rglob(".build-*"))


def test_of_several_that_want_it_one_builds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made: list[Path] = []

    def compiled(folder: Path) -> None:
        made.append(folder)
        time.sleep(0.1)
        (folder / build.library().name).touch()

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(build, "_compile", compiled)
    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(lambda _: build.built(), range(4))) == {build.library()}
    assert len(made) == 1 and build.library().exists()


def test_the_cache_follows_source_and_torch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = build.library()
    other = tmp_path / "device.cpp"
    other.write_bytes(build.SOURCE.read_bytes() + b"\n")
    monkeypatch.setattr(build, "SOURCE", other)
    assert build.library() != before
    monkeypatch.undo()
    assert build.library() == before

    def version(package: str) -> Any:
        return "9.9"

    monkeypatch.setattr(build, "version", version)
    assert build.library() != before
