"""Rules about memory: what an engine allocates, and what it keeps for itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.config_release import GEMMA, KIMI, LLAMA, MIMO, on, release

from dayzero.data import device
from dayzero.schema import Cluster, Layout
from dayzero.stages.preflight import preflight


def found(folder: Path, config: dict[str, Any], **facts: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """(facts of the finding, facts of the release); no finding: no facts."""
    result = preflight(release(folder, config), on(**facts))
    return next((one.facts for one in result.findings if one.rule == "kv-layout"), {}), result.facts


def test_states_share_pages_with_caches(tmp_path: Path) -> None:
    # vllm-project/vllm#28228: 2.30 GiB for 75,840 tokens are 32,563 bytes for each; 7 latent layers need 8,064
    one, facts = found(tmp_path, KIMI, unified_pages=True)
    assert facts["kv_bytes_per_token"] == 7 * 576 * 2 == one["need"]
    assert facts["kv_bytes_per_token_allocated"] == one["allocated"] == pytest.approx(32_563, rel=0.02)
    assert one["groups"] == 4


def test_windows_share_pages_with_full_layers(tmp_path: Path) -> None:
    one, facts = found(tmp_path, GEMMA, unified_pages=True)
    assert facts["kv_bytes_per_token"] == 4 * 2 * 256 * 2
    assert (one["groups"], one["allocated"]) == (7, 7 * 4 * 2 * 256 * 2)


def test_windows_of_another_size_take_smaller_pages(tmp_path: Path) -> None:
    # 9 full layers of 4 heads, 39 sliding ones of 8: pages of 16 tokens of the larger, of 32 of the smaller
    one, _ = found(tmp_path, MIMO, unified_pages=True)
    assert (one["groups"], one["page_tokens"]) == (6, 32)


@pytest.mark.parametrize(("config", "facts"), [
    (LLAMA, {"unified_pages": True}), (KIMI, {}), (KIMI, {"unified_pages": False}), (LLAMA, {"name": "vllm"}),
    (KIMI, {"name": "sglang"}),
])
def test_nothing_to_say(tmp_path: Path, config: dict[str, Any], facts: dict[str, Any]) -> None:
    one, numbers = found(tmp_path, config, **facts)
    assert one == {}
    assert numbers.get("kv_bytes_per_token_allocated", numbers["kv_bytes_per_token"]) == numbers["kv_bytes_per_token"]


def test_an_engine_keeps_memory_for_itself(tmp_path: Path) -> None:
    # the newest version: 0.55 GiB of libraries and 1.28 GiB that collectives take while the step is measured
    one, cluster = release(tmp_path, LLAMA), Cluster(device=device("h200"), devices_per_node=8, nodes=1,
                                                     memory_utilization=0.9, network=None)
    sizes = {}
    for name in ("any", "vllm"):
        target = msgspec.structs.replace(on(name=name), cluster=cluster, layouts=(Layout(tp=8),))
        sizes[name] = preflight(one, target).facts["bytes_per_device"]
    assert sizes["vllm"]["workspace"] - sizes["any"]["workspace"] == 590_558_003
    assert sizes["vllm"]["communication"] - sizes["any"]["communication"] == 1_374_389_534
    # sines and cosines of 131,072 positions, 128 wide, in 16 bits
    assert sizes["vllm"]["weights"] - sizes["any"]["weights"] == 131_072 * 128 * 2
