"""What is too long or too many is refused before anything is started."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from tests.support import tiny

from dayzero.errors import NotPossible, ReleaseError, UsageError
from dayzero.schema import Attention, Layout, ModelSpec
from dayzero.stages.run import limits
from dayzero.stages.run.layouts import choose
from dayzero.stages.run.limits import check_length, check_seed, check_time, check_tokens, least_bytes, too_many_ranks


@pytest.fixture
def model(tmp_path: Path) -> ModelSpec:
    (tmp_path / "config.json").write_text(
        '{"architectures": ["A"], "model_type": "a", "vocab_size": 300, "hidden_size": 64, "num_hidden_layers": 4}')
    return tiny.release(tmp_path).model


@pytest.mark.parametrize("seed", [-1, 2**63, 10**23])
def test_a_seed_that_generators_do_not_take(seed: int) -> None:
    check_seed(0)
    check_seed(2**63 - 1)
    with pytest.raises(UsageError, match="the seed is out of range"):
        check_seed(seed)


def test_a_prompt_without_a_token(model: ModelSpec) -> None:
    with pytest.raises(UsageError, match="prompt 2 has no tokens"):
        check_tokens(model, [(1,), ()], 1)


def test_a_token_that_the_model_does_not_have(model: ModelSpec) -> None:
    """Of 300."""
    check_tokens(model, [(1, 299), (0,)], None)
    with pytest.raises(ReleaseError, match="token 300, but the model has 300 tokens"):
        check_tokens(model, [(1,), (300, 2)], None)


@pytest.mark.parametrize("ends", ["a", -5, 10**20, [[1]], [1, 300], True, 1.0, {"x": 1}])
def test_end_tokens_that_are_none(model: ModelSpec, ends: object) -> None:
    for fine in (None, 0, 299, [1, 2], []):
        check_tokens(model, [(1,)], fine)
    with pytest.raises(ReleaseError, match="eos_token_id holds"):
        check_tokens(model, [(1,)], ends)


@pytest.mark.parametrize(("prompt", "new", "fits"), [
    (224, 32, True), (225, 32, False), (400, 1, False), (3, 2**70, False)])
def test_no_longer_than_the_model_allows(model: ModelSpec, prompt: int, new: int, fits: bool) -> None:
    short = msgspec.structs.replace(model, max_positions=256)
    prompts = [(1, 2), (1,) * prompt]
    if fits:
        check_length(short, prompts, new, 1, chosen=True)
        return
    with pytest.raises(UsageError, match=rf"prompt 2 has {prompt} tokens; .* than the 256 that the model") as caught:
        check_length(short, prompts, new, 1, chosen=True)
    assert "--max-new-tokens" in caught.value.hint and len(caught.value.message) < 150
    with pytest.raises(NotPossible, match="prompt 2"):
        check_length(short, prompts, new, 1, chosen=False)


def test_what_a_length_takes_by_hand(model: ModelSpec) -> None:
    # 4 layers of keys and values of 2 heads of 16 values of 2 bytes, and 16 bytes for what is kept of each token
    token = 4 * 2 * 2 * 16 * 2 + 16
    assert least_bytes(model, [10, 20, 30], 5000, 2) == 2 * 5030 * token
    assert least_bytes(model, [10], 5000, 4) == 5010 * token
    assert least_bytes(model, [5000], 1, 1) == 5000 * 300 * 4  # logits of the whole prompt in f32
    linear = {"full": Attention(kind="linear", heads=4, kv_heads=4, head_dim=16, v_head_dim=16)}
    assert least_bytes(msgspec.structs.replace(model, attentions=linear), [1], 10**6, 1) == (10**6 + 1) * 16


@pytest.mark.parametrize(("free", "refused"), [(10**6, True), (10**8, False), (0, False)])
def test_without_a_stated_length_memory_decides(model: ModelSpec, monkeypatch, free: int, refused: bool) -> None:
    """0: the system does not tell."""
    monkeypatch.setattr(limits.host, "available_memory", lambda: free)
    if refused:
        with pytest.raises(UsageError, match=r"than the 976\.56 KiB that are free"):
            check_length(model, [(1, 2, 3)], 5000, 1, chosen=True)
    else:
        check_length(model, [(1, 2, 3)], 5000, 1, chosen=True)


def test_prompts_that_no_launch_could_read_in_time(model: ModelSpec) -> None:
    # 4 layers of 4 heads of 16 + 16 values, half of n^2 pairs, two operations each; no weights
    assert limits.least_flops(model, 1000) == 4 * 4 * 32 * 1000 * 1000
    target = tiny.target(2)  # 1e11 operations a second
    check_time(model, [(1,) * 1000], (Layout(),), target, 0.03)
    with pytest.raises(NotPossible, match=r"1,000 tokens 4 times takes at least 0 s with dp=2, and"):
        check_time(model, [(1,) * 1000], (Layout(dp=2),), target, 0.01)
    window = {"full": msgspec.structs.replace(model.attentions["full"], window=10)}
    narrow = msgspec.structs.replace(model, attentions=window)
    assert limits.least_flops(narrow, 1000) == 2 * 4 * 4 * 32 * 1000 * 10


@pytest.mark.parametrize(("ranks", "cores", "free", "reason"), [
    (8, 2, 2**40, ""), (9, 2, 2**40, "9 ranks are more than the 8 that 2 cores can run side by side"),
    (24, 12, 2**40, ""), (25, 12, 2**40, "25 ranks are more than the 24"),
    (8, 2, 2**31 - 1, "8 ranks take 2.00 GiB before they load a weight"), (8, 2, 0, "")])
def test_ranks_that_this_machine_can_run(monkeypatch, ranks: int, cores: int, free: int, reason: str) -> None:
    monkeypatch.setattr(limits.host, "available_memory", lambda: free)
    monkeypatch.setattr(limits.host, "cores", lambda: cores)
    found = too_many_ranks(Layout(dp=ranks))
    assert found.startswith(reason) and bool(found) == bool(reason)


def test_too_many_ranks_are_not_started(monkeypatch) -> None:
    monkeypatch.setattr(limits.host, "cores", lambda: 2)
    with pytest.raises(NotPossible, match="dp=24: 24 ranks are more than the 8"):
        choose(tiny.EMPTY_PLAN, tiny.target(24), (Layout(dp=24),))


def test_a_layout_that_is_named_twice_runs_once() -> None:
    chosen, _ = choose(tiny.EMPTY_PLAN, tiny.target(2), (Layout(dp=2), Layout(), Layout(dp=2)))
    assert chosen == (Layout(dp=2), Layout())
