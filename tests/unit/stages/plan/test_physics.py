"""What must hold of any figures, by closed forms of this file's own: bytes by hand, nothing faster than the datasheet,
more work never quicker, more bandwidth never slower, two halves as one whole."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np
import pytest

from dayzero.placement.many import Layouts
from dayzero.placement.memory import fullest_device
from dayzero.resolve import resolve_target
from dayzero.schema import Layout, ModelSpec, Target
from dayzero.stages.plan.evaluate import Evaluated, evaluate
from dayzero.stages.plan.space import every
from dayzero.stages.read import read

CARDS = ("llama-3.1-8b", "qwen3-235b-a22b", "deepseek-v3")


@pytest.fixture(scope="module")
def models(root: Path) -> dict[str, ModelSpec]:
    return {name: read(root / "examples" / "cards" / f"{name}.toml").model for name in CARDS}


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Target:
    """Two nodes of eight, and no engine."""
    path = tmp_path_factory.mktemp("target") / "t.toml"
    path.write_text('[cluster]\ndevice = "h200"\ndevices_per_node = 8\nnodes = 2\n'
                    "network = {name = \"ib\", bandwidth = 50e9, latency = 1e-5}\n")
    return resolve_target(path)


def serving(on: Target, **workload: float) -> Target:
    plain = {"concurrency": 32, "input_tokens": 1000, "output_tokens": 24}
    return msgspec.structs.replace(on, workload=msgspec.structs.replace(on.workload, **{**plain, **workload}))


def space(model: ModelSpec, world: int = 16) -> Layouts:
    layouts = every(model, world)
    return layouts.take(np.flatnonzero(layouts.pp <= len(model.layers)))


def never(worse: np.ndarray, better: np.ndarray, where: np.ndarray, slack: float = 1e-6) -> None:
    """`worse` is nowhere below `better`."""
    assert where.any() and (worse[where] >= better[where] * (1 - slack)).all(), (worse / better)[where].min()


def _grouped(layout: Layout) -> tuple[float, float]:
    """Qwen3-235B-A22B in bf16: (weights of a rank of all 94 layers, cache of a token). config.json of the release."""
    h, heads, kv, width, experts, inner, layers, words = 4096, 64, 4, 128, 128, 1536, 94, 151936
    ranks = layout.attention_tp or layout.tp
    one = 2 * heads // ranks * width * h + 2 * max(1, kv // ranks) * width * h + 2 * width + 2 * h + experts * h
    one += experts // layout.ep * 3 * h * inner // max(1, layout.tp // layout.ep)
    return 2 * (layers * one + 2 * words // layout.tp * h + h), 4 * max(1, kv // ranks) * width * layers


def _latent(layout: Layout) -> tuple[float, float]:
    """DeepSeek-V3 in fp8 blocks of 128 x 128 with f32 scales. config.json and index of the release."""
    h, heads, experts, inner, words = 7168, 128, 256, 2048, 129280
    ranks = heads // (layout.attention_tp or layout.tp)

    def blocks(rows: int, columns: int) -> int:
        return rows * columns + 4 * -(-rows // 128) * -(-columns // 128)

    attention = (blocks(1536, h) + blocks(576, h) + blocks(ranks * 192, 1536) + blocks(ranks * 256, 512)
                 + blocks(h, ranks * 128) + 2 * (1536 + 512 + 2 * h))
    routed = experts // layout.ep * 3 * blocks(inner // max(1, layout.tp // layout.ep), h)
    sparse = routed + 3 * blocks(inner // layout.tp, h) + experts * (2 * h + 4)
    dense = 3 * blocks(18432 // layout.tp, h)
    return 61 * attention + 58 * sparse + 3 * dense + 2 * (2 * words // layout.tp * h + h), 2 * 576 * 61


@pytest.mark.parametrize("layout", [
    Layout(), Layout(tp=16, ep=16), Layout(tp=8, ep=8, dp=2, attention_tp=1), Layout(tp=8, ep=16, dp=2),
    Layout(tp=16, ep=4, attention_tp=2), Layout(tp=8, ep=8, cp=2)], ids=str)
@pytest.mark.parametrize(("name", "by_hand"), [("qwen3-235b-a22b", _grouped), ("deepseek-v3", _latent)])
def test_bytes_by_hand(models: dict[str, ModelSpec], nodes: Target, name: str, by_hand, layout: Layout) -> None:
    weights, token = by_hand(layout)
    found = fullest_device(models[name], layout, serving(nodes))
    sequences = 32 // (layout.dp * (layout.tp // (layout.attention_tp or layout.tp)))
    assert found["weights"] == weights and found["kv_cache"] == token * 1024 * sequences // layout.cp


@pytest.mark.parametrize(("sequences", "prompt"), [(1, 1000), (16, 4000), (256, 1000)])
def test_nothing_is_faster_than_the_datasheet(models: dict[str, ModelSpec], nodes: Target, sequences: int,
                                              prompt: int) -> None:
    """Llama-3.1-8B in bf16: each step reads the weights on the way of a token, and the cache of what is decoded
    together; each token takes two operations for each weight. h200: 4.8 TB/s, 989 TFLOP/s."""
    layouts = space(models["llama-3.1-8b"])
    made = evaluate(models["llama-3.1-8b"], serving(nodes, concurrency=sequences, input_tokens=prompt), layouts)
    ranks, tp = layouts.attention_degree, layouts.tp
    kv = np.maximum(1, 8 / ranks) * 128
    weights = 2 * (32 * (2 * 4096 * 4096 / ranks + 2 * kv * 4096 + 3 * 4096 * 14336 / tp) + 128256 * 4096 / tp)
    cache = 4 * kv * 32 * prompt * np.floor(sequences / (layouts.dp * (tp // ranks)))
    slowest = np.maximum(weights, (weights + cache / layouts.cp) / layouts.pp) / 4.8e12
    computing = 2 * 7.5e9 * sequences / 16 / 989e12
    for times in (made.tpot_s, made.tpot_between[0]):
        never(times, np.maximum(slowest, computing), made.fits)


@pytest.mark.parametrize("name", CARDS)
def test_more_work_is_never_quicker(models: dict[str, ModelSpec], nodes: Target, name: str) -> None:
    """Also where prompts outgrow a pass (8192 tokens), and where there are as many sequences as stages."""
    layouts = space(models[name])

    def at(**workload: float) -> Evaluated:
        return evaluate(models[name], serving(nodes, output_tokens=500, **workload), layouts)

    for less, more in pairwise(at(concurrency=count) for count in (1, 4, 7, 8, 15, 16, 17, 64)):
        never(more.tpot_s, less.tpot_s, less.fits & more.fits)
    for less, more in pairwise(at(input_tokens=count) for count in (100, 2000, 4096, 4097, 8192, 8193, 16384, 16385)):
        never(more.ttft_s, less.ttft_s, less.fits & more.fits)
        never(more.tpot_s, less.tpot_s, less.fits & more.fits)


@pytest.mark.parametrize("name", CARDS)
def test_better_devices_are_never_slower(models: dict[str, ModelSpec], nodes: Target, name: str) -> None:
    layouts, device = space(models[name]), nodes.cluster.device
    before = evaluate(models[name], serving(nodes), layouts)
    better = (msgspec.structs.replace(device, memory_bandwidth=2 * device.memory_bandwidth),
              msgspec.structs.replace(device, flops={scheme: 2 * rate for scheme, rate in device.flops.items()}),
              msgspec.structs.replace(device, links=tuple(msgspec.structs.replace(link, bandwidth=2 * link.bandwidth)
                                                          for link in device.links)))
    for one in better:
        on = msgspec.structs.replace(nodes, cluster=msgspec.structs.replace(nodes.cluster, device=one))
        after = evaluate(models[name], serving(on), layouts)
        never(before.tpot_s, after.tpot_s, before.fits)
        never(before.ttft_s, after.ttft_s, before.fits)
        never(after.tokens_per_s, before.tokens_per_s, before.fits)


@pytest.mark.parametrize("name", CARDS)
def test_two_clusters_of_half_the_size(models: dict[str, ModelSpec], nodes: Target, name: str) -> None:
    half = space(models[name], 8)
    halves = [half[row] for row in range(len(half))]
    whole = Layouts.of(msgspec.structs.replace(one, dp=2 * one.dp) for one in halves)
    alone = msgspec.structs.replace(nodes, cluster=msgspec.structs.replace(nodes.cluster, nodes=1))
    one = evaluate(models[name], serving(alone, concurrency=16), half)
    two = evaluate(models[name], serving(nodes), whole)
    assert np.array_equal(one.need_bytes, two.need_bytes)
    for figure, times in (("tpot_s", 1), ("ttft_s", 1), ("tokens_per_s", 2)):
        assert getattr(two, figure)[one.fits] == pytest.approx(times * getattr(one, figure)[one.fits], rel=1e-9)


@pytest.mark.parametrize("name", CARDS)
def test_a_token_more_is_a_token_more(models: dict[str, ModelSpec], nodes: Target, name: str) -> None:
    """Under load the next prompt fills the last pass of the one before, and two prompts in a pass are two prompts: no
    length is dearer, or cheaper, by a whole pass."""
    layouts = space(models[name])
    for tokens in (2048, 4096, 8192, 16384):
        less, more = (evaluate(models[name], serving(nodes, concurrency=64, output_tokens=500, input_tokens=one),
                               layouts) for one in (tokens, tokens + 1))
        ratio = (more.tokens_per_s / less.tokens_per_s)[less.fits & more.fits]
        assert ratio.min() > 0.9 and ratio.max() < 1.001
