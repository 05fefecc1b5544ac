"""State updates against a recurrence written down token by token, chunk against token, packed against single, the
library's own functions, and hand-computed values."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from dayzero.ops import OPERATORS, impl

DELTA = (False, True, False, None, None, None, False, False)
"""value_first, unit and the options of the gate, none of them used but `unit`."""


def inputs(batch: int, tokens: int, keys: int, values: int, k: int = 6, v: int = 4) -> dict[str, torch.Tensor]:
    torch.manual_seed(batch * 100 + tokens)
    return {"q": torch.randn(batch, tokens, keys, k), "k": torch.randn(batch, tokens, keys, k),
            "v": torch.randn(batch, tokens, values, v), "beta": torch.rand(batch, tokens, values),
            "state": torch.randn(batch, values, k, v)}  # fmt: skip


def decays(kind: str, x: dict[str, torch.Tensor]) -> torch.Tensor | None:
    batch, tokens, heads = x["beta"].shape
    shapes = {"channel": (batch, tokens, heads, x["k"].shape[-1]), "head": (batch, tokens, heads), "constant": (heads,)}
    return -torch.rand(shapes[kind]) if kind in shapes else None


def by_hand(x: dict[str, torch.Tensor], decay: torch.Tensor | None, scale: float, delta: bool,
            state: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """The formula of the module's docstring, for every sequence, head and token."""
    batch, tokens, heads = x["beta"].shape
    share = heads // x["k"].shape[2]
    out, last = torch.zeros_like(x["v"]), torch.zeros_like(x["state"])
    for b in range(batch):
        for h in range(heads):
            s = torch.zeros_like(x["state"][b, h]) if state is None else state[b, h].clone()
            for t in range(tokens):
                q, k, v = x["q"][b, t, h // share] * scale, x["k"][b, t, h // share], x["v"][b, t, h]
                if decay is not None:
                    rate = decay[h] if decay.dim() == 1 else decay[b, t, h]
                    s = torch.exp(rate)[..., None] * s
                if delta:
                    v = x["beta"][b, t, h] * (v - k @ s)
                s = s + torch.outer(k, v)
                out[b, t, h] = q @ s
            last[b, h] = s
    return out, last


def unit(x: torch.Tensor) -> torch.Tensor:
    return x / torch.sqrt((x * x).sum(-1, keepdim=True) + 1e-6)


@pytest.mark.parametrize("kind", ["none", "constant", "head", "channel"])
@pytest.mark.parametrize("chunk", [0, 1, 4, 64])
@pytest.mark.parametrize("started", [False, True])
def test_the_delta_rule_is_its_recurrence(kind: str, chunk: int, started: bool) -> None:
    x = inputs(2, 11, 2, 4)
    decay, state = decays(kind, x), x["state"] if started else None
    out, last = impl.linear_attention.delta_rule(x["q"], x["k"], x["v"], decay, x["beta"], 0.4, state, None, chunk,
                                                 *DELTA)
    expected = by_hand({**x, "q": unit(x["q"]), "k": unit(x["k"])}, decay, 0.4, True, state)
    torch.testing.assert_close((out, last), expected, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", ["none", "constant", "head", "channel"])
@pytest.mark.parametrize("chunk", [0, 4, 64])
def test_linear_attention_is_its_recurrence(kind: str, chunk: int) -> None:
    x = inputs(2, 11, 2, 4)
    decay = decays(kind, x)
    result = impl.linear_attention.linear_attention(x["q"], x["k"], x["v"], decay, 0.4, x["state"], None, chunk, False)
    torch.testing.assert_close(result, by_hand(x, decay, 0.4, False, x["state"]), atol=2e-5, rtol=1e-4)


@settings(max_examples=25, deadline=None)
@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=4), kind=st.sampled_from(["none", "head", "channel"]),
       chunk=st.sampled_from([0, 3, 64]), first=st.booleans(), started=st.booleans())  # fmt: skip
def test_packed_sequences_are_each_by_itself_and_shapes_are_known(
    sizes: list[int], kind: str, chunk: int, first: bool, started: bool
) -> None:
    x = inputs(1, sum(sizes), 1, 2)
    decay = decays(kind, x)
    state = torch.randn(len(sizes), 2, *((4, 6) if first else (6, 4))) if started else None
    ends = torch.tensor([0, *torch.tensor(sizes).cumsum(0).tolist()], dtype=torch.int32)
    options = (first, *DELTA[1:])
    call = impl.linear_attention.delta_rule
    out, last = call(x["q"], x["k"], x["v"], decay, x["beta"], 0.4, state, ends, chunk, *options)
    for n, (start, end) in enumerate(zip(ends.tolist(), ends.tolist()[1:], strict=False)):
        rows = slice(start, end)
        one = call(x["q"][:, rows], x["k"][:, rows], x["v"][:, rows], None if decay is None else decay[:, rows],
                   x["beta"][:, rows], 0.4, None if state is None else state[n:n + 1], None, chunk, *options)
        torch.testing.assert_close((out[:, rows], last[n:n + 1]), one, atol=1e-5, rtol=1e-4)
    meta = [None if each is None else each.to("meta") for each in (x["q"], x["k"], x["v"], decay, x["beta"])]
    empty = call(*meta, 0.4, None if state is None else state.to("meta"), ends.to("meta"), chunk, *options)
    assert [(e.shape, e.dtype) for e in empty] == [(out.shape, out.dtype), (last.shape, last.dtype)]


def test_two_halves_with_the_state_between_are_the_whole() -> None:
    x = inputs(1, 14, 2, 2)
    decay = decays("channel", x)
    call = impl.linear_attention.delta_rule

    def part(rows: slice, state: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        return call(x["q"][:, rows], x["k"][:, rows], x["v"][:, rows], decay[:, rows], x["beta"][:, rows], 0.4, state,
                    None, 5, *DELTA)

    whole, last = part(slice(None), None)
    first, between = part(slice(0, 9), None)
    second, end = part(slice(9, None), between)
    torch.testing.assert_close((torch.cat([first, second], 1), end), (whole, last), atol=1e-5, rtol=1e-4)


def test_a_decay_that_underflows_stays_finite() -> None:
    """-60 for each token: over a chunk the decay is exp(-960), which no float holds."""
    x = inputs(1, 16, 1, 1)
    decay = torch.full((1, 16, 1, 6), -60.0)
    call = impl.linear_attention.delta_rule
    chunked, stepped = (call(x["q"], x["k"], x["v"], decay, x["beta"], 0.4, None, None, size, *DELTA)
                        for size in (16, 0))
    torch.testing.assert_close(chunked, stepped, atol=1e-6, rtol=1e-5)


def test_the_library_has_the_same_gated_delta_rule() -> None:
    from transformers.models.qwen3_next import modeling_qwen3_next as theirs

    x = inputs(2, 70, 3, 3, 8, 8)
    decay = decays("head", x)
    for chunk, function in ((64, theirs.torch_chunk_gated_delta_rule), (0, theirs.torch_recurrent_gated_delta_rule)):
        ours = impl.linear_attention.delta_rule(x["q"], x["k"], x["v"], decay, x["beta"], 8**-0.5, x["state"], None,
                                                chunk, *DELTA)
        out, state = function(x["q"], x["k"], x["v"], decay, x["beta"], initial_state=x["state"],
                              output_final_state=True, use_qk_l2norm_in_kernel=True)
        torch.testing.assert_close(ours, (out, state), atol=2e-5, rtol=1e-4)


def test_the_library_has_the_same_rule_with_a_decay_for_each_channel() -> None:
    from transformers.models.kimi_linear import modeling_kimi_linear as theirs

    x = inputs(2, 70, 3, 3, 8, 8)
    decay = decays("channel", x)
    ours = impl.linear_attention.delta_rule(x["q"], x["k"], x["v"], decay, x["beta"], 8**-0.5, None, None, 64, *DELTA)
    result = theirs.chunk_kimi_delta_attention(x["q"], x["k"], x["v"], decay, x["beta"], output_final_state=True,
                                               use_qk_l2norm_in_kernel=True)
    torch.testing.assert_close(ours, result, atol=2e-5, rtol=1e-4)


def test_the_gate_by_hand() -> None:
    """softplus(0) = ln 2 at a rate of 1 and of 3; half of the bound, sigmoid(0) = 1/2."""
    raw, a_log, bias = torch.ones(1, 1, 2, 3), torch.tensor([0.0, 2.0]).log1p(), -torch.ones(6)
    plain = impl.linear_attention.gate(raw, a_log, bias, None)
    torch.testing.assert_close(plain[0, 0, :, 0], -torch.tensor([0.6931472, 3 * 0.6931472]))
    assert impl.linear_attention.gate(raw, a_log, bias, -5.0).unique().tolist() == [-2.5]


@pytest.mark.parametrize("tail", [(4,), (4, 6)])
def test_gate_and_beta_inside_are_those_outside(tail: tuple[int, ...]) -> None:
    x = inputs(1, 5, 4, 4)
    raw, a_log, bias = torch.randn(1, 5, *tail), torch.randn(4), torch.randn(tail)
    call = impl.linear_attention.delta_rule
    inside = call(x["q"], x["k"], x["v"], raw, x["beta"], 0.4, None, None, 4, False, True, True, a_log, bias, None,
                  True, True)
    rate = a_log.exp() if len(tail) == 1 else a_log.exp()[:, None]
    decay = -rate * torch.log1p(torch.exp(raw + bias))
    outside = call(x["q"], x["k"], x["v"], decay, 2 * torch.sigmoid(x["beta"]), 0.4, None, None, 4, *DELTA)
    torch.testing.assert_close(inside, outside, atol=1e-5, rtol=1e-4)


def test_operations_are_those_of_the_definition() -> None:
    """By hand, 70 tokens, 3 heads of 8 x 4, chunks of 64: 70 * 3 * (6 * 32 + 64 * (48 + 16)); token by token
    70 * 3 * 7 * 32."""
    x = inputs(1, 70, 3, 3, 8, 4)
    for chunk, expected in ((64, 70 * 3 * (6 * 32 + 64 * 64)), (0, 70 * 3 * 7 * 32)):
        with FlopCounterMode(display=False) as counter:
            impl.linear_attention.delta_rule(*(x[n].to("meta") for n in "qkv"), None, x["beta"].to("meta"), 0.4, None,
                                             None, chunk, *DELTA)
        assert counter.get_total_flops() == expected
    axes = {"sequences": 1, "tokens": 1, "heads": 3, "head_dim": 8, "v_head_dim": 4, "chunk": 64}
    assert OPERATORS.get("gated_linear_attention").flops(axes) == 3 * 5 * 32
