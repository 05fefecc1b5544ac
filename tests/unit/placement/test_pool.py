"""The pool of an engine against what engines logged, and properties that hold for every engine and layout."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.config_release import KIMI, LLAMA, release

from dayzero.data import device, engine
from dayzero.data.allocation import allocation, allocations
from dayzero.data.precisions import precision
from dayzero.placement.pool import Pool, Settings, pool, reserved, step_bytes
from dayzero.placement.precision import recast
from dayzero.schema import Device, Layout, ModelSpec
from dayzero.schema.allocation import Batch
from dayzero.stages.read import read

GIB = 2**30


def made(model: ModelSpec, name: str, version: str, on: Device, layout: Layout, **stated: object) -> Pool:
    rules = allocation(name, version)
    assert rules
    return pool(model, layout, engine("any"), rules, on, Settings(**stated))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> ModelSpec:
    return release(tmp_path_factory.mktemp("llama"), LLAMA).model


@pytest.fixture(scope="module")
def kimi(tmp_path_factory: pytest.TempPathFactory) -> ModelSpec:
    return release(tmp_path_factory.mktemp("kimi"), KIMI).model


@pytest.fixture(scope="module")
def qwen(root: Path) -> ModelSpec:
    return recast(read(str(root / "examples/cards/qwen3-235b-a22b.toml")).model, precision("fp8"))  # type: ignore[arg-type]


@pytest.mark.parametrize(("length", "logged", "starts"), [(20_000, 31_232, True), (29_000, 23_648, False)])
def test_one_small_card(llama: ModelSpec, length: int, logged: int, starts: bool) -> None:
    # vllm-project/vllm#10517: Llama-3.1-8B on an RTX 3090: 14.9888 GiB of weights; 1952 and 1478 blocks of 16 tokens.
    # The longer prompts take the activations' part of the pool, and do not fit in what is left.
    found = made(llama, "vllm", "2024-12", device("rtx3090"), Layout(), length=length)
    assert found.least.weights / GIB == pytest.approx(14.9888, rel=0.002)
    assert found.least.room.tokens == pytest.approx(logged, rel=0.03)
    assert found.starts(allocation("vllm", "2024-12")) == starts  # type: ignore[arg-type]


def test_the_buffer_that_a_kernel_of_experts_asks_for_is_part_of_the_step(root: Path) -> None:
    # InferenceX, agg-b200-tp8pp2-agentic.yaml: ~1.6 GiB for 8192 tokens of Kimi-K3. flashinfer, csrc/
    # trtllm_fused_moe_kernel_launcher.cu: the second product of (experts + (tokens * top_k - experts) / tile) tiles of
    # 128 rows of the latent width in 16 bits
    model = read(str(root / "examples/cards/kimi-k3.toml")).model
    rows = (896 + (8192 * 16 - 896) // 128) * 128
    assert rows * 3584 * 2 / GIB == pytest.approx(1.6, rel=0.03)
    rules, batch = allocation("vllm"), Batch(above_bytes=0, tokens=8192, sequences=256)
    assert rules
    for layout in (Layout(tp=8, pp=2), Layout(tp=8, pp=2, ep=8)):
        assert step_bytes(model, layout, rules, range(47), batch) > rows * (3584 * 2 + 3072 // 8)


def test_two_engines_on_the_same_devices(qwen: ModelSpec) -> None:
    # vllm-project/vllm#21348: Qwen3-235B-A22B-FP8 on 4 H100: 178,880 tokens in 8.11 GiB, and 367,404 in 16.46 GiB with
    # the other engine and a share of 0.93
    first = made(qwen, "vllm", "2025-07-22", device("h100"), Layout(tp=4))
    other = made(qwen, "sglang", "2025-07-22", device("h100"), Layout(tp=4), utilization=0.93)
    assert first.least.room.tokens == pytest.approx(178_880, rel=0.07)
    assert other.least.room.tokens == pytest.approx(367_404, rel=0.07)


def test_states_make_pages_large(kimi: ModelSpec) -> None:
    # vllm-project/vllm#28228: 2 devices, attention block of 960 tokens, 75,840 tokens, 2.48 sequences of 120,000
    from dayzero.placement.cache import kinds, unified

    rules = allocation("vllm", "2025-11")
    assert rules
    pages = unified(kinds(kimi, Layout(tp=2), rules, range(27), "auto"), rules)
    assert (pages.tokens, pages.groups, pages.group_layers) == (960, 4, 7)
    room = pages.room(int(2.30 * GIB), 120_000, 64_000, rules)
    assert room.tokens == pytest.approx(75_840, rel=0.02)
    assert room.sequences == pytest.approx(2.48, rel=0.02)


def test_a_latent_cache_of_an_engine_that_cannot_keep_it(root: Path) -> None:
    model = read(str(root / "examples/cards/deepseek-v3.toml")).model
    old, new = (made(model, "vllm", version, device("h200"), Layout(tp=8)) for version in ("0.6.6", "0.7.1"))
    # 16 of 128 heads on a rank, keys and values 256 wide, beside 576 values
    assert old.least.pool / old.least.room.tokens == pytest.approx(61 * 16 * 2 * 256 * 2, rel=0.001)
    assert new.least.pool / new.least.room.tokens == pytest.approx(61 * 576 * 2, rel=0.001)


def test_fp8_halves_an_entry_and_context_parallel_multiplies_tokens(kimi: ModelSpec) -> None:
    plain = made(kimi, "sglang", "", device("h200"), Layout(tp=4))
    narrow = made(kimi, "sglang", "", device("h200"), Layout(tp=4), cache_dtype="fp8")
    shared = made(kimi, "sglang", "", device("h200"), Layout(tp=4, cp=4))
    assert narrow.least.room.tokens == pytest.approx(2 * plain.least.room.tokens, rel=0.001)
    assert shared.least.room.tokens == pytest.approx(4 * plain.least.room.tokens, rel=0.001)


def test_kernels_that_pad_experts(root: Path) -> None:
    # 2880 is padded to 3072 and to 2944 (vllm-project/vllm#23278 logs 65.97 GiB for 60.7 GiB on disk, of 120B)
    model = read(str(root / "examples/cards/gpt-oss-20b.toml")).model
    padded, later, plain = (made(model, name, version, device("h100"), Layout()).least.weights
                            for name, version in (("vllm", "0.11.0"), ("vllm", "0.14.1"), ("sglang", "")))
    experts = sum(family.stored_bytes for family in model.families if family.experts and family.scheme == "mxfp4")
    assert experts and padded - plain == pytest.approx(experts * (3072 * 2944 / 2880**2 - 1), rel=0.01)
    assert later - plain == pytest.approx(experts * (3072 / 2880 - 1), rel=0.01)  # #33155: 64.38 GiB of the larger one


def test_a_share_that_is_worked_out() -> None:
    # sgl-project/sglang#10975: 512 + 8192 * 1.5 + 256 * 2 MiB + 8 / 8 GiB
    rules = allocation("sglang", "0.5.6")
    assert rules
    batch = Batch(above_bytes=0, tokens=8192, sequences=256)
    assert reserved(rules.reserve, 80 * GIB, Layout(tp=8), batch) == (512 + 12_288 + 512 + 1024) * 2**20
    assert reserved(rules.reserve, 80 * GIB, Layout(), msgspec.structs.replace(batch, tokens=2048)) == 10 * GIB


@settings(deadline=None)
@given(name=st.sampled_from(allocations()), tp=st.sampled_from([1, 2, 4, 8]), share=st.floats(0.5, 0.97),
       length=st.integers(1, 200_000))
def test_a_larger_share_never_holds_less(name: str, tp: int, share: float, length: int) -> None:
    found = [made(SMALL, name, "", device("h200"), Layout(tp=tp), utilization=part, length=length).least
             for part in (share, min(0.99, share + 0.02))]
    assert found[0].room.tokens <= found[1].room.tokens
    assert found[0].room.sequences <= found[1].room.sequences
    assert all(stage.room.tokens >= 0 for stage in found)


SMALL = read(str(Path(__file__).parents[3] / "examples/cards/qwen3-235b-a22b.toml")).model
