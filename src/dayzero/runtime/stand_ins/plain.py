"""What takes the place of a model file's own functions in plain torch; each is called by name with what they take."""

from __future__ import annotations

from math import inf
from typing import Any

import torch

from dayzero.ops import impl


def delta_rule(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, g: torch.Tensor, beta: torch.Tensor,
    chunk_size: int = 0, initial_state: torch.Tensor | None = None, output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False, **_: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:  # fmt: skip
    """[B, T, H, K]; the decay of each head or channel; a function without `chunk_size` goes token by token."""
    out, state = impl.linear_attention.delta_rule(
        query, key, value, g, beta, key.shape[-1] ** -0.5, initial_state, None, chunk_size, False,
        use_qk_l2norm_in_kernel, False, None, None, None, False, False)
    return out.to(query.dtype), state if output_final_state else None


def convolution(
    hidden_states: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None,
    activation: str | None = None, **_: Any,
) -> torch.Tensor:  # fmt: skip
    """[B, D, T]."""
    out, _state = impl.convolution.convolution(hidden_states.transpose(1, 2), weight, bias, None, None, None,
                                               activation or "", 0)
    return out.transpose(1, 2)  # type: ignore[no-any-return]


def convolution_update(
    hidden_states: torch.Tensor, conv_state: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None,
    activation: str | None = None, **_: Any,
) -> torch.Tensor:  # fmt: skip
    """[B, D, T]; the state is changed in place."""
    out: torch.Tensor = impl.convolution.convolution_update(hidden_states.transpose(1, 2), conv_state, weight, bias,
                                                            None, None, activation or "")
    return out.transpose(1, 2)


def state_space(
    hidden_states: torch.Tensor, dt: torch.Tensor, A: torch.Tensor, B: torch.Tensor, C: torch.Tensor,  # noqa: N803
    chunk_size: int, D: torch.Tensor | None = None, dt_bias: torch.Tensor | None = None,  # noqa: N803
    initial_states: torch.Tensor | None = None, dt_softplus: bool = False, dt_limit: tuple[float, float] = (0.0, inf),
    return_final_states: bool = False, **_: Any,
) -> Any:  # fmt: skip
    """[B, T, H, P] in chunks; the output in fp32."""
    out, state = impl.state_space.state_space(hidden_states.float(), dt, A, B, C, D, None, dt_bias, initial_states,
                                              None, chunk_size, dt_softplus, *map(float, dt_limit))
    return (out, state) if return_final_states else out


def selective_scan(
    hidden_states: torch.Tensor, dt: torch.Tensor, A: torch.Tensor, B: torch.Tensor, C: torch.Tensor,  # noqa: N803
    D: torch.Tensor | None = None, z: torch.Tensor | None = None, delta_bias: torch.Tensor | None = None,  # noqa: N803
    delta_softplus: bool = False, return_last_state: bool = False, **_: Any,
) -> Any:  # fmt: skip
    """[B, D, T]."""
    out, state = impl.state_space.selective_scan(hidden_states, dt, A, B, C, D, z, delta_bias, delta_softplus)
    return (out, state) if return_last_state else out


def state_space_update(
    state: torch.Tensor, hidden_states: torch.Tensor, dt: torch.Tensor, A: torch.Tensor, B: torch.Tensor,  # noqa: N803
    C: torch.Tensor, D: torch.Tensor | None = None, dt_bias: torch.Tensor | None = None,  # noqa: N803
    dt_softplus: bool = False, z: torch.Tensor | None = None, **_: Any,
) -> torch.Tensor:  # fmt: skip
    """One token of each sequence; the state is changed in place."""
    from .state_space import selective_state_update

    return selective_state_update(state, hidden_states, dt, A, B, C, D, z, dt_bias, dt_softplus)
