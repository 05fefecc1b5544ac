"""Stand-ins for fused normalisation (of fla, mamba_ssm, flash_attn, liger_kernel)."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from dayzero.ops import impl

from .recording import unsupported


def _norm(
    x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None = None, *, eps: float, rms: bool,
    gate: torch.Tensor | None = None, residual: torch.Tensor | None = None, activation: str = "",
    gate_first: bool = False, groups: int = 1, offset: float = 0.0, prenorm: bool = False, wide: bool = False,
) -> Any:  # fmt: skip
    out, total = impl.norm.norm(x, weight, bias, gate, residual, eps, rms, activation, gate_first, groups, offset, wide)
    return (out, total) if prenorm else out


def fla_rms_norm(x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None,
                 residual: torch.Tensor | None = None, eps: float = 1e-5, prenorm: bool = False,
                 residual_in_fp32: bool = False) -> Any:  # fmt: skip
    """Of x + residual, which comes second when `prenorm`."""
    return _norm(x, weight, bias, eps=eps, rms=True, residual=residual, prenorm=prenorm, wide=residual_in_fp32)


def fla_layer_norm(x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None,
                   residual: torch.Tensor | None = None, eps: float = 1e-5, prenorm: bool = False,
                   residual_in_fp32: bool = False, is_rms_norm: bool = False) -> Any:  # fmt: skip
    """The same with mean and variance, unless `is_rms_norm`."""
    return _norm(x, weight, bias, eps=eps, rms=is_rms_norm, residual=residual, prenorm=prenorm, wide=residual_in_fp32)


def rms_norm_gated(x: torch.Tensor, g: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None,
                   activation: str = "swish", residual: torch.Tensor | None = None, prenorm: bool = False,
                   residual_in_fp32: bool = False, eps: float = 1e-6) -> Any:  # fmt: skip
    """The norm times the activated gate."""
    return _norm(x, weight, bias, eps=eps, rms=True, gate=g, residual=residual, activation=activation, prenorm=prenorm,
                 wide=residual_in_fp32)


def layer_norm_gated(x: torch.Tensor, g: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None,
                     activation: str = "swish", residual: torch.Tensor | None = None, prenorm: bool = False,
                     residual_in_fp32: bool = False, eps: float = 1e-6) -> Any:  # fmt: skip
    """The same with mean and variance."""
    return _norm(x, weight, bias, eps=eps, rms=False, gate=g, residual=residual, activation=activation,
                 prenorm=prenorm, wide=residual_in_fp32)


def rms_norm_fn(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, residual: torch.Tensor | None = None,
    x1: Any = None, weight1: Any = None, bias1: Any = None, eps: float = 1e-6, dropout_p: float = 0.0,
    rowscale: Any = None, prenorm: bool = False, residual_in_fp32: bool = False, return_dropout_mask: bool = False,
) -> Any:  # fmt: skip
    """Of x + residual."""
    unsupported(x1=x1, rowscale=rowscale, dropout_p=dropout_p,
                return_dropout_mask=return_dropout_mask)
    return _norm(x, weight, bias, eps=eps, rms=True, residual=residual, prenorm=prenorm, wide=residual_in_fp32)


def layer_norm_fn(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, residual: torch.Tensor | None = None,
    x1: Any = None, weight1: Any = None, bias1: Any = None, eps: float = 1e-6, dropout_p: float = 0.0,
    rowscale: Any = None, prenorm: bool = False, residual_in_fp32: bool = False, is_rms_norm: bool = False,
    return_dropout_mask: bool = False,
) -> Any:  # fmt: skip
    """The same with mean and variance, unless `is_rms_norm`."""
    unsupported(x1=x1, rowscale=rowscale, dropout_p=dropout_p,
                return_dropout_mask=return_dropout_mask)
    return _norm(x, weight, bias, eps=eps, rms=is_rms_norm, residual=residual, prenorm=prenorm, wide=residual_in_fp32)


def rmsnorm_fn(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, z: torch.Tensor | None = None,
               eps: float = 1e-6, group_size: int | None = None, norm_before_gate: bool = True) -> Any:  # fmt: skip
    """In groups, with a gate before or after."""
    groups = 1 if group_size is None else x.shape[-1] // group_size
    return _norm(x, weight, bias, eps=eps, rms=True, gate=z, activation="silu", gate_first=not norm_before_gate,
                 groups=groups)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> Any:
    """Plain."""
    return _norm(x, weight, eps=epsilon, rms=True)


def l2norm(x: torch.Tensor, eps: float = 1e-6, output_dtype: torch.dtype | None = None) -> torch.Tensor:
    """x / sqrt(sum(x ** 2) + eps): the root of the mean's norm, its scale aside."""
    width = x.shape[-1]
    out: torch.Tensor = _norm(x if output_dtype is None else x.to(output_dtype), None, eps=eps / width, rms=True)
    return out.mul(float(width) ** -0.5)


class _Norm(nn.Module):
    """Weight and bias of a norm."""

    def __init__(self, hidden_size: int, affine: bool, bias: bool, eps: float, device: Any, dtype: Any) -> None:
        super().__init__()
        self.hidden_size, self.elementwise_affine, self.eps = hidden_size, affine, eps
        self.weight = nn.Parameter(torch.ones(hidden_size, device=device, dtype=dtype)) if affine else None
        self.bias = nn.Parameter(torch.zeros(hidden_size, device=device, dtype=dtype)) if affine and bias else None

    def reset_parameters(self) -> None:
        """Ones and zeros."""
        if self.weight is not None:
            nn.init.ones_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)


class RMSNorm(_Norm):
    """Of x + residual."""

    rms = True

    def __init__(self, hidden_size: int, elementwise_affine: bool = True, bias: bool = False, eps: float = 1e-5,
                 device: Any = None, dtype: Any = None) -> None:  # fmt: skip
        super().__init__(hidden_size, elementwise_affine, bias, eps, device, dtype)

    def forward(self, x: torch.Tensor, residual: torch.Tensor | None = None, prenorm: bool = False,
                residual_in_fp32: bool = False) -> Any:  # fmt: skip
        """x [..., hidden_size]."""
        return _norm(x, self.weight, self.bias, eps=self.eps, rms=self.rms, residual=residual, prenorm=prenorm,
                     wide=residual_in_fp32)


class LayerNorm(RMSNorm):
    """The same with mean and variance."""

    rms = False


class FusedRMSNormGated(_Norm):
    """The norm times the activated gate."""

    rms = True

    def __init__(self, hidden_size: int, elementwise_affine: bool = True, eps: float = 1e-5, activation: str = "swish",
                 device: Any = None, dtype: Any = None, bias: bool = False) -> None:  # fmt: skip
        super().__init__(hidden_size, elementwise_affine, bias, eps, device, dtype)
        self.activation = activation

    def forward(self, x: torch.Tensor, g: torch.Tensor, residual: torch.Tensor | None = None, prenorm: bool = False,
                residual_in_fp32: bool = False) -> Any:  # fmt: skip
        """x and gate [..., hidden_size]."""
        return _norm(x, self.weight, self.bias, eps=self.eps, rms=self.rms, gate=g, residual=residual,
                     activation=self.activation, prenorm=prenorm, wide=residual_in_fp32)


class FusedRMSNormSwishGate(FusedRMSNormGated):
    """The gate's activation is fixed."""

    def __init__(self, hidden_size: int, elementwise_affine: bool = True, eps: float = 1e-5, device: Any = None,
                 dtype: Any = None) -> None:  # fmt: skip
        super().__init__(hidden_size, elementwise_affine, eps, "swish", device, dtype)


class FusedLayerNormGated(FusedRMSNormGated):
    """The same with mean and variance."""

    rms = False

    def __init__(self, hidden_size: int, elementwise_affine: bool = True, bias: bool = False, activation: str = "swish",
                 eps: float = 1e-5, device: Any = None, dtype: Any = None) -> None:  # fmt: skip
        super().__init__(hidden_size, elementwise_affine, eps, activation, device, dtype, bias)


class MambaRMSNormGated(_Norm):
    """In groups, with a gate before or after."""

    def __init__(self, hidden_size: int, eps: float = 1e-5, group_size: int | None = None,
                 norm_before_gate: bool = True, device: Any = None, dtype: Any = None) -> None:  # fmt: skip
        super().__init__(hidden_size, True, False, eps, device, dtype)
        self.group_size, self.norm_before_gate = group_size, norm_before_gate

    def forward(self, x: torch.Tensor, z: torch.Tensor | None = None) -> Any:
        """x and gate [..., hidden_size]."""
        assert self.weight is not None
        return rmsnorm_fn(x, self.weight, self.bias, z, self.eps, self.group_size, self.norm_before_gate)


class MambaRMSNorm(RMSNorm):
    """Of x + residual."""

    def __init__(self, hidden_size: int, eps: float = 1e-5, dropout_p: float = 0.0, device: Any = None,
                 dtype: Any = None, **_: Any) -> None:  # fmt: skip
        unsupported(dropout_p=dropout_p)
        super().__init__(hidden_size, eps=eps, device=device, dtype=dtype)


class LigerRMSNorm(_Norm):
    """The weight counts from an offset."""

    def __init__(self, hidden_size: int, eps: float = 1e-6, offset: float = 0.0, casting_mode: str = "",
                 init_fn: str = "ones", in_place: bool = True, row_mode: Any = None,
                 elementwise_affine: bool = True) -> None:  # fmt: skip
        super().__init__(hidden_size, elementwise_affine, False, eps, None, None)
        self.offset, self.variance_epsilon = offset, eps
        if init_fn == "zeros" and self.weight is not None:
            nn.init.zeros_(self.weight)

    def forward(self, hidden_states: torch.Tensor) -> Any:
        """[..., hidden_size]."""
        return _norm(hidden_states, self.weight, eps=self.eps, rms=True, offset=self.offset)
