"""Weights that stay as they are stored: the same bits as when they are decoded at load, in fewer bytes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.support import quantised_model
from tests.support.tiered import generate, tiered, whole
from tests.support.twins import of_card

pytestmark = pytest.mark.filterwarnings("ignore:.*past_key_values.*:FutureWarning")


@pytest.mark.parametrize(("form", "dtype"), [*((form, "bf16") for form in quantised_model.FORMS), ("nvfp4", "f32")])
def test_same_bits_of_a_dense_model(form: str, dtype: str, tmp_path: Path) -> None:
    folder = quantised_model.write(tmp_path / "model", form)
    tokens, logits = generate(whole(folder, dtype), 3)
    for share in (0.05, 0.4, None):
        model, tiers = tiered(folder, dtype, share=share, keep="stored")
        again, same = generate(model, 3)
        assert (again, torch.equal(same, logits)) == (tokens, True), share
        record = tiers.statistics()
        tiers.close()
        assert record.stored_bytes <= record.fresh_bytes
        assert 0 < record.kept["stored"] <= tiers._split.stored  # no more than there is room for
    assert record.stored_bytes == record.needed_bytes > 0 and record.read_bytes == 0 and record.hit == 1
    assert record.kept["stored"] == pytest.approx(record.needed_bytes / record.passes, rel=0.01)
    assert record.kept["stored"] < 0.6 * sum(each.nbytes for each in whole(folder, dtype).model.layers.parameters())
    assert record.kept["staging"] <= 0.55 * sum(each.nbytes for each in whole(folder, dtype).model.layers.parameters())


@pytest.mark.slow
@pytest.mark.parametrize("card", ["gpt-oss-20b", "deepseek-v3"])
def test_same_bits_of_experts(card: str, tmp_path: Path) -> None:
    """MXFP4 with biases and in blocks of its own layout; FP8 of single experts that become one tensor."""
    of_card(card, tmp_path / "twin")
    tokens, logits = generate(whole(tmp_path / "twin", "bf16"), 4)
    for share in (0.0, 0.2, None):
        model, tiers = tiered(tmp_path / "twin", "bf16", share=share, keep="stored")
        again, same = generate(model, 4)
        assert (again, torch.equal(same, logits)) == (tokens, True), share
        record = tiers.statistics()
        tiers.close()
        assert record.stored_bytes > 0
    files = sum(path.stat().st_size for path in (tmp_path / "twin").glob("*.safetensors"))
    assert record.kept["stored"] < files and record.kept["experts"] < 0.7 * record.kept["stored"]
