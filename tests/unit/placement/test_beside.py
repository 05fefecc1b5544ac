"""What is taken beside the budget, against what servers asked for and logged."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.config_release import LLAMA, release

from dayzero.data import device, engine
from dayzero.data.allocation import allocation
from dayzero.placement.beside import beside_bytes, buffer_bytes, graph_bytes
from dayzero.placement.pool import Pool, Settings, pool
from dayzero.schema import FeedForward, Layout, ModelSpec
from dayzero.schema.allocation import Allocation, Batch, Beside, Between, Buffer
from dayzero.stages.read import read

GIB = 2**30


def rules(version: str) -> Allocation:
    found = allocation("vllm", version)
    assert found and found.beside
    return found


def block(experts: int, top_k: int, hidden: int) -> FeedForward:
    """Experts so narrow that only the second product counts."""
    return FeedForward(kind="experts", width=1, experts=experts, top_k=top_k, input_width=hidden)


@pytest.mark.parametrize(("experts", "top_k", "hidden", "ranks", "tokens", "tile", "asked"), [
    (256, 8, 7168, 4, 8192, 192, 4.15), (384, 8, 7168, 4, 8192, 192, 4.48), (384, 8, 7168, 4, 8192, 256, 4.81),
    (256, 8, 2048, 8, 16384, 64, 4.06)])
def test_the_buffer_that_servers_asked_for(experts: int, top_k: int, hidden: int, ranks: int, tokens: int, tile: int,
                                           asked: float) -> None:
    # flashinfer-ai/flashinfer#4916: DeepSeek-R1 and Kimi-K2-Thinking on 4 GPUs, Qwen3.6-35B-A3B on 8, replicas of one
    # GPU each; tiles are those that the launcher may choose
    made = buffer_bytes(Buffer(schemes=(), archs=(), tile=tile), block(experts, top_k, hidden),
                        Layout(dp=ranks, ep=ranks), tokens)
    assert made / GIB == pytest.approx(asked, abs=0.01)


@pytest.mark.parametrize(("version", "layers", "sequences", "logged"), [
    ("0.10.0", 34, 1024, 0.65), ("0.10.0", 48, 1024, 1.21), ("0.11.1", 78, 1024, 4.13), ("0.5.4", 60, 256, 2.41)])
def test_graphs_that_start_up_logs_show_are_within_the_bounds(version: str, layers: int, sequences: int, logged: float
                                                              ) -> None:
    # vllm-project/vllm#21489 (0.65 GiB, gemma-3-4b; 1.3 GB, Llama-4-Maverick), #7553 (2464 MiB, Yi-1.5-34B)
    stated = rules(version).beside
    assert stated
    found = graph_bytes(stated, range(layers), Batch(above_bytes=0, tokens=8192, sequences=sequences))
    assert found.least <= logged * GIB <= found.most < 4 * logged * GIB


def test_fewer_sequences_capture_fewer_graphs() -> None:
    stated = Beside(graph=Between(most=1), graph_tokens=512, graph_sequences=2, graph_passes=1)
    sizes = [captured(stated, sequences) for sequences in (4, 8, 1024)]
    assert sizes == [4, 5, 67]  # 1, 2, 4, 8; and 16; up to 512


def captured(stated: Beside, sequences: int) -> int:
    """Graphs of a layer."""
    counted = msgspec.structs.replace(stated, graph=Between(most=1))
    return graph_bytes(counted, range(1), Batch(above_bytes=0, tokens=1, sequences=sequences)).most


def test_the_numbers_of_graphs_that_start_up_logs_count() -> None:
    # vllm-project/vllm#27521 (2025-10-24): 67 mixed; #46389 (2026): 51 mixed and 35 for decoding, of 256 sequences;
    # club-3090#584: 5 up to 16 tokens, of 8 sequences
    first, later = rules("0.10.0").beside, rules("0.12.0").beside
    assert first and later
    assert captured(first, 1024) == 67
    assert captured(later, 256) == 51 + 35
    assert captured(later, 8) == 5 + 4


@pytest.fixture(scope="module")
def kimi(root: Path) -> ModelSpec:
    return read(str(root / "examples/cards/kimi-k3.toml")).model


def made(model: ModelSpec, name: str, layout: Layout, share: float, version: str = "0.25.0") -> Pool:
    return pool(model, layout, engine("any"), rules(version), device(name), Settings(utilization=share))


def test_a_share_that_may_leave_too_little(kimi: ModelSpec) -> None:
    # InferenceX, agg-b200-tp8pp2-agentic.yaml: 0.95 ran out of memory at the first request, 0.90 did not
    tight, wide = (made(kimi, "b200", Layout(tp=8, pp=2), share) for share in (0.95, 0.90))
    assert tight.holds(rules("0.25.0")) and tight.starts(rules("0.25.0")) is None
    assert wide.starts(rules("0.25.0")) is True
    assert made(kimi, "b200", Layout(tp=8, pp=2), 0.999).starts(rules("0.25.0")) is False


def test_what_counts_where(kimi: ModelSpec) -> None:
    batch, old, new = Batch(above_bytes=0, tokens=8192, sequences=1024), rules("0.11.0"), rules("0.21.0")

    def most(layout: Layout, name: str, by: Allocation = new) -> float:
        return beside_bytes(kimi, layout, by, device(name), range(93 // layout.pp), batch).most / GIB

    assert most(Layout(), "h200") == pytest.approx(0.75, abs=0.01)  # graphs are in the budget, no such kernel
    assert most(Layout(), "b200") == pytest.approx(0.75 + 359_424 * (3584 + 3072) * 2 / GIB, abs=0.01)
    assert most(Layout(tp=16), "h200") - most(Layout(), "h200") == pytest.approx(4.6, abs=0.01)  # communicators
    assert most(Layout(tp=8, pp=2), "h200") - most(Layout(tp=16), "h200") == pytest.approx(4, abs=0.01)
    assert most(Layout(), "h200", old) > 5 + most(Layout(), "h200")  # its graphs are not
    assert most(Layout(dp=8, ep=8), "b200") > 4 * most(Layout(ep=1), "b200")  # tokens of eight replicas, and tuning


def test_an_engine_of_which_nothing_is_known_beside_its_budget(tmp_path: Path) -> None:
    model, known = release(tmp_path, LLAMA).model, allocation("sglang")
    assert known
    found = pool(model, Layout(), engine("any"), known, device("h100"))
    assert found.spare is None and found.starts(known) is True


@given(tokens=st.integers(1, 65_536), experts=st.integers(1, 512), top_k=st.integers(1, 16),
       tile=st.sampled_from([8, 64, 256]))
def test_every_visit_has_a_row(tokens: int, experts: int, top_k: int, tile: int) -> None:
    visited = min(top_k, experts)
    asked = buffer_bytes(Buffer(schemes=(), archs=(), tile=tile), block(experts, visited, 7), Layout(), tokens)
    rows = asked // ((7 + 1) * 2)
    assert rows % tile == 0 and tokens * visited <= rows + tile
