"""State spaces against the library's own plain functions and a recurrence written down token by token."""

import pytest
import torch
from torch.nn.functional import silu, softplus
from torch.utils.flop_counter import FlopCounterMode

from dayzero.ops import OPERATORS, impl

INF = float("inf")


def heads(tokens: int = 21, batch: int = 2) -> dict[str, torch.Tensor]:
    torch.manual_seed(3)
    return {"x": torch.randn(batch, tokens, 4, 5), "dt": torch.randn(batch, tokens, 4), "a": -torch.rand(4),
            "b": torch.randn(batch, tokens, 2, 3), "c": torch.randn(batch, tokens, 2, 3), "d": torch.randn(4),
            "bias": torch.randn(4), "state": torch.randn(batch, 4, 5, 3),
            "z": torch.randn(batch, tokens, 4, 5)}  # fmt: skip


def by_hand(x: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    state, outs = x["state"].clone(), []
    for t in range(x["x"].shape[1]):
        dt = softplus(x["dt"][:, t] + x["bias"]).clamp(0.1, 2.0)
        b, c = (each[:, t].repeat_interleave(2, 1) for each in (x["b"], x["c"]))
        state = (torch.exp(dt * x["a"])[..., None, None] * state
                 + (dt[..., None] * x["x"][:, t])[..., None] * b[:, :, None])
        out = (state * c[:, :, None]).sum(-1) + x["x"][:, t] * x["d"][:, None]
        outs.append(out * silu(x["z"][:, t]))
    return torch.stack(outs, 1), state


@pytest.mark.parametrize("chunk", [1, 4, 64])
def test_chunks_are_the_recurrence(chunk: int) -> None:
    x = heads()
    arguments = [x[n] for n in ("x", "dt", "a", "b", "c", "d", "z", "bias", "state")]
    out, state = impl.state_space.state_space(*arguments, None, chunk, True, 0.1, 2.0)
    expected = by_hand(x)
    torch.testing.assert_close((out, state), expected, atol=2e-5, rtol=1e-4)
    empty = impl.state_space.state_space(*(each.to("meta") for each in arguments), None, chunk, True, 0.1, 2.0)
    assert [(e.shape, e.dtype) for e in empty] == [(out.shape, out.dtype), (state.shape, state.dtype)]


def test_the_library_scans_chunks_alike() -> None:
    from transformers.models.mamba2.modeling_mamba2 import mamba2_chunk_scan

    x = heads()
    out, state = impl.state_space.state_space(x["x"], x["dt"], x["a"], x["b"], x["c"], x["d"], None, x["bias"],
                                              x["state"], None, 8, True, 0.0, INF)
    expected = mamba2_chunk_scan(x["x"], x["dt"], x["a"], x["b"], x["c"], 8, x["d"], x["bias"], x["state"], True,
                                 return_final_states=True)
    torch.testing.assert_close((out, state), expected, atol=2e-5, rtol=1e-4)


def test_packed_sequences_are_each_by_itself() -> None:
    x = heads(tokens=11, batch=1)
    state, ends = torch.randn(2, 4, 5, 3), torch.tensor([0, 4, 11])
    call = impl.state_space.state_space
    out, last = call(x["x"], x["dt"], x["a"], x["b"], x["c"], None, None, None, state, ends, 4, True, 0.0, INF)
    for n, rows in enumerate((slice(0, 4), slice(4, 11))):
        one = call(*(x[k][:, rows] if k != "a" else x[k] for k in ("x", "dt", "a", "b", "c")), None, None, None,
                   state[n:n + 1], None, 4, True, 0.0, INF)
        torch.testing.assert_close((out[:, rows], last[n:n + 1]), one, atol=1e-5, rtol=1e-4)


def test_one_token_is_a_step_of_the_chunks_and_of_the_library() -> None:
    from transformers.models.mamba2.modeling_mamba2 import mamba2_selective_state_update

    x = heads(tokens=1)
    whole, last = impl.state_space.state_space(x["x"], x["dt"], x["a"], x["b"], x["c"], x["d"], x["z"], x["bias"],
                                               x["state"], None, 64, True, 0.0, INF)
    wide = {"dt": x["dt"][:, 0, :, None].expand(2, 4, 5), "a": x["a"][:, None, None].expand(4, 5, 3),
            "d": x["d"][:, None].expand(4, 5), "bias": x["bias"][:, None].expand(4, 5)}  # fmt: skip
    state, theirs = x["state"].clone(), x["state"].clone()
    out = impl.state_space.state_space_update(state, x["x"][:, 0], wide["dt"], wide["a"], x["b"][:, 0], x["c"][:, 0],
                                              wide["d"], x["z"][:, 0], wide["bias"], True)
    torch.testing.assert_close((out, state), (whole[:, 0], last), atol=1e-5, rtol=1e-4)
    other = mamba2_selective_state_update(theirs, x["x"][:, 0], wide["dt"], wide["a"], x["b"][:, 0], x["c"][:, 0],
                                          wide["d"], wide["bias"], True, x["z"][:, 0])
    torch.testing.assert_close((out, state), (other, theirs), atol=1e-5, rtol=1e-4)


def test_the_library_scans_channels_alike() -> None:
    from transformers.models.mamba.modeling_mamba import mamba_selective_scan

    torch.manual_seed(3)
    x, dt, z = (torch.randn(2, 6, 13) for _ in range(3))
    a, d, bias = -torch.rand(6, 4), torch.randn(6), torch.randn(6)
    b, c = torch.randn(2, 4, 13), torch.randn(2, 4, 13)
    out, state = impl.state_space.selective_scan(x, dt, a, b, c, d, z, bias, True)
    expected = mamba_selective_scan(x, dt, a, b, c, d, z, bias, True, return_last_state=True)
    torch.testing.assert_close((out, state), expected, atol=2e-5, rtol=1e-4)
    grouped = impl.state_space.selective_scan(x, dt, a, b[:, None], c[:, None], d, z, bias, True)
    torch.testing.assert_close(grouped, (out, state))
    empty = impl.state_space.selective_scan(*(t.to("meta") for t in (x, dt, a, b, c, d, z, bias)), True)
    assert [(e.shape, e.dtype) for e in empty] == [(out.shape, out.dtype), (state.shape, state.dtype)]


def test_operations_are_those_of_the_definition() -> None:
    """By hand, 2 sequences of 21 tokens, 4 heads of 5 with a state of 3 and 2 groups. Chunks of 8:
    42 * (4 * 60 + 8 * 2 * (6 + 20)); token by token 42 * 5 * 60."""
    x = {name: each.to("meta") for name, each in heads().items()}
    for chunk, expected in ((8, 42 * (240 + 16 * 26)), (1, 42 * 300)):
        with FlopCounterMode(display=False) as counter:
            impl.state_space.state_space(x["x"], x["dt"], x["a"], x["b"], x["c"], None, None, None, None, None, chunk,
                                         False, 0.0, INF)
        assert counter.get_total_flops() == expected
    axes = {"sequences": 2, "tokens": 16, "heads": 4, "head_dim": 5, "groups": 2, "state_dim": 3, "chunk": 8, "item": 2,
            "state_item": 4}  # fmt: skip
    moved = 2 * 16 * (20 + 20 + 6 + 6 + 4) * 2 + 2 * 2 * (2 * 4 * 5 * 3 * 4)
    assert OPERATORS.get("state_space").bytes(axes) == moved
