"""A model gives the same bits with weights in tiers, however little room there is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.tiered import generate, tiered, whole
from tests.support.twins import of_card

from dayzero.runtime.tiers import tiers as module

pytestmark = pytest.mark.filterwarnings("ignore:.*past_key_values.*:FutureWarning")
CARDS = ("qwen3-235b-a22b", "deepseek-v3", "gpt-oss-20b")


@pytest.fixture(scope="module", params=CARDS)
def twin(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stacked experts; latent attention and a shared expert; quantised ones with biases."""
    folder = tmp_path_factory.mktemp("twins") / str(request.param)
    of_card(request.param, folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_same_bits_in_any_room(twin: Path, dtype: str) -> None:
    tokens, logits = generate(whole(twin, dtype))
    for share in (0.0, 0.1, 0.4, 1.0):
        model, tiers = tiered(twin, dtype, share=share)
        again, same = generate(model)
        assert (again, torch.equal(same, logits)) == (tokens, True), share
        tiers.close()


def test_head_in_blocks(twin: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A product of fewer columns may be summed in another order: fp32 to 1e-6."""
    monkeypatch.setattr(module, "BLOCK", 1 << 16)
    tokens, logits = generate(whole(twin), 3)
    model, tiers = tiered(twin)
    again, close = generate(model, 3)
    assert again == tokens and "head" not in tiers.statistics().kept
    torch.testing.assert_close(close, logits, rtol=1e-6, atol=1e-6 * float(logits.abs().max()))
    tiers.close()


@pytest.mark.parametrize("options", [{"foresight": "last"}, {"foresight": "none"}, {"policy": "recent"},
                                     {"policy": "frequent"}, {"threads": 1}, {"from_disk": True}])  # fmt: skip
def test_no_choice_changes_a_bit(options: dict[str, Any], tmp_path: Path) -> None:
    of_card(CARDS[0], tmp_path / "twin")
    logits = generate(whole(tmp_path / "twin"))[1]
    model, tiers = tiered(tmp_path / "twin", share=0.3, **options)
    assert torch.equal(generate(model)[1], logits)
    tiers.close()


def test_real_dense_model(real_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tied embedding and head: single rows for the one, blocks for the other; layers in two slots."""
    monkeypatch.setattr(module, "BLOCK", 8 << 20)
    tokens, logits = generate(whole(real_model, "bf16"), 3)
    model, tiers = tiered(real_model, "bf16")
    again, same = generate(model, 3)
    assert (again, torch.equal(same, logits)) == (tokens, True)
    record = tiers.statistics()
    assert record.kept.keys() == {"staging"} and record.passes == 3
    assert record.hit == 0 and record.misses <= 2 and record.accuracy is not None and record.accuracy > 0.95
    parameters = sum(each.numel() for name, each in whole(real_model, "bf16").named_parameters() if "embed" not in name)
    assert record.needed_bytes == pytest.approx(3 * 2 * parameters, rel=0.01)
    tiers.close()


def test_a_failed_read_is_told_and_the_next_one_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of_card(CARDS[0], tmp_path / "twin")
    logits = generate(whole(tmp_path / "twin"), 2)[1]
    model, tiers = tiered(tmp_path / "twin")
    fill = tiers._checkpoint.fill
    monkeypatch.setattr(tiers._checkpoint, "fill", lambda *_: (_ for _ in ()).throw(OSError("gone")))
    with pytest.raises(OSError, match="gone"):
        generate(model, 2)
    monkeypatch.setattr(tiers._checkpoint, "fill", fill)
    assert torch.equal(generate(model, 2)[1], logits)
    tiers.close()
