"""Random values with sane statistics."""

from __future__ import annotations

import numpy as np

from dayzero.stages.twin.values import kind_of, matrix, table, vector


def test_matrices_have_the_spread_of_their_inputs() -> None:
    made = matrix(0, "model.layers.0.mlp.up_proj", (512, 1024), 1024)
    assert abs(made.std() * 32 - 1) < 0.01
    assert abs(made.mean()) < 0.001


def test_a_tensor_depends_on_seed_and_name_alone() -> None:
    one = matrix(0, "a", (4, 4), 4)
    assert np.array_equal(one, matrix(0, "a", (4, 4), 4))
    assert not np.array_equal(one, matrix(1, "a", (4, 4), 4))
    assert not np.array_equal(one, matrix(0, "b", (4, 4), 4))


def test_numbers_of_state_spaces() -> None:
    decay = np.exp(vector(0, "A_log", (1000,), kind_of("m.A_log")))
    assert 1 <= decay.min() < 2
    assert 15 < decay.max() <= 16
    step = np.log1p(np.exp(vector(0, "dt_bias", (1000,), kind_of("m.dt_bias"))))
    assert 0.0009 < step.min() < 0.0012
    assert 0.09 < step.max() < 0.101


def test_norms_biases_and_scales_of_caches() -> None:
    norm = matrix(0, "m.input_layernorm", (4096,), 1)
    assert abs(norm.mean() - 1) < 0.002
    assert abs(norm.std() - 0.02) < 0.002
    assert abs(vector(0, "m.bias", (4096,), kind_of("m.bias")).mean()) < 0.002
    assert vector(0, "m.k_scale", (), kind_of("m.k_scale")).tolist() == 1.0


def test_tables_hold_positions_or_experts() -> None:
    assert table(0, "m.position_ids", (1, 5), 8).tolist() == [[0, 1, 2, 3, 4]]
    experts = table(0, "gate.tid2eid", (100, 6), 8)
    assert set(experts.reshape(-1).tolist()) == set(range(8))
