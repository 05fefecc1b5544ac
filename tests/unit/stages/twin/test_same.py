"""What a twin has in common with its original, by the other stages: preflight's rules, and operators."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support import twins

from dayzero.resolve import resolve_target
from dayzero.schema import Release
from dayzero.stages.preflight import preflight
from dayzero.stages.read import read
from dayzero.stages.twin import twin

TARGETS = Path(__file__).parents[4] / "examples" / "targets"


def findings(release: Release, target: Path) -> set[tuple[str, str]]:
    """Rules that find something, with severity, but those about memory."""
    found = preflight(release, resolve_target(target, measured=None)).findings
    return {(one.rule, one.severity) for one in found if not one.rule.startswith("memory-")}


@pytest.mark.parametrize("card", ["deepseek-v3", "gpt-oss-20b", "kimi-k3", "qwen3-235b-a22b"])
@pytest.mark.parametrize("target", ["h200-1x8", "ascend910b-2x8", "custom-chip"])
def test_preflight_finds_the_same(card: str, target: str, tmp_path: Path) -> None:
    original = read(twins.CARDS / f"{card}.toml")
    twin(original, tmp_path / "t")
    small = read(tmp_path / "t", metadata_only=True)
    assert findings(small, TARGETS / f"{target}.toml") == findings(original, TARGETS / f"{target}.toml")


@pytest.mark.slow
@pytest.mark.parametrize("card", ["deepseek-v3", "gpt-oss-20b", "gemma-3-1b"])
def test_the_same_operators_run(card: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from dayzero.stages.trace import trace

    original = read(twins.CARDS / f"{card}.toml")
    twin(original, tmp_path / "t")
    large, small = trace(original), trace(read(tmp_path / "t", metadata_only=True))
    for graph in (large, small):
        assert not graph.missing
    seen = [{(one.phase, one.op, one.variant, one.module) for one in graph.operations} for graph in (large, small)]
    assert seen[0] == seen[1]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_library_reads_the_same_values_as_the_tests(tmp_path: Path) -> None:
    """transformers dequantises MXFP4 itself: its logits are those of the plain copy, but for rounding to bf16."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    twins.of_card("gpt-oss-20b", tmp_path / "t")
    ids = torch.tensor([[72, 101, 108, 108, 111]])
    with torch.no_grad():
        one, other = (transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)(ids).logits
                      for folder in (tmp_path / "t", twins.plain(tmp_path / "t", tmp_path / "p")))
    assert (one - other).abs().max() < 0.02
