"""A head beside a tied embedding, and integers in the place of floats."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from tests.support import small_release
from tests.support.plan_models import target as plan_target

from dayzero.stages.preflight import preflight
from dayzero.stages.read import read

HEAD, EMBEDDING, Q1 = "lm_head.weight", "model.embed_tokens.weight", "model.layers.1.self_attn.q_proj.weight"


def _release(folder: Path, config: dict[str, object], **changes: np.ndarray | None):
    """`changes`: by name, with underscores for dots; None: left out."""
    small_release.write(folder)
    for path in (*folder.glob("*.safetensors"), *folder.glob("*.index.json")):
        path.unlink()
    (folder / "config.json").write_text(json.dumps(small_release.CONFIG | config))
    random = np.random.default_rng(0)
    arrays = {name: random.random(shape, np.float32).astype(np.float16)
              for name, (_, shape) in small_release.tensors().items()}
    arrays |= changes
    save_file({name: value for name, value in arrays.items() if value is not None}, folder / "model.safetensors")
    return read(str(folder)), arrays


def _told(release, rule: str) -> list[tuple[str, str]]:
    found = preflight(release, plan_target(), select=(rule,)).findings
    return [(finding.subject, finding.severity) for finding in found]


def test_a_head_of_its_own_beside_a_tied_embedding(tmp_path: Path) -> None:
    tied = {"tie_word_embeddings": True}
    release, arrays = _release(tmp_path / "other", tied)
    assert _told(release, "weights-tied") == [(HEAD, "error")]
    same, _ = _release(tmp_path / "same", tied, **{HEAD: arrays[EMBEDDING]})
    assert _told(same, "weights-tied") == []
    last = arrays[EMBEDDING].copy()
    last[-1, -1] += 1
    assert _told(_release(tmp_path / "last", tied, **{HEAD: last})[0], "weights-tied") == [(HEAD, "error")]
    wide = arrays[EMBEDDING].astype(np.float32)
    assert _told(_release(tmp_path / "wide", tied, **{HEAD: wide})[0], "weights-tied") == [(HEAD, "error")]
    for number, release in enumerate((_release(tmp_path / "none", tied, **{HEAD: None})[0],
                                      _release(tmp_path / "untied", {})[0])):
        assert _told(release, "weights-tied") == [], number


@pytest.mark.parametrize("kind", [np.int64, np.bool_, np.int8, np.uint8])
def test_integers_in_the_place_of_a_weight(tmp_path: Path, kind: type) -> None:
    integers = np.ones((64, 64), kind)
    release, _ = _release(tmp_path / "odd", {}, **{Q1: integers})
    assert _told(release, "weights-integers") == [("model.layers.{L}.self_attn.q_proj.weight", "error")]
    scale = {Q1.replace("weight", "weight_scale"): np.ones(64, np.float32)}
    assert _told(_release(tmp_path / "scaled", {}, **{Q1: integers}, **scale)[0], "weights-integers") == []
    stated = {"quantization_config": {"quant_method": "any"}}
    assert _told(_release(tmp_path / "stated", stated, **{Q1: integers})[0], "weights-integers") == []
    assert _told(_release(tmp_path / "floats", {})[0], "weights-integers") == []


def test_tables_of_indices_are_none(tmp_path: Path) -> None:
    table = {"model.layers.1.mlp.gate.tid2eid": np.ones((256, 2), np.int64)}
    assert _told(_release(tmp_path / "table", {}, **table)[0], "weights-integers") == []
