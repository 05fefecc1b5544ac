"""What the operators compute, in plain torch: one function for each operator, judged by its definition and run on any
device that torch runs on. Importing this package registers them all as torch operators `dayzero::*`, with a rule for
shapes (they can be traced without values) and with their definitions' count of operations. Needs torch."""

from . import attention, convolution, gemm, linear_attention, loss, norm, rotary, state_space
from .register import NAMESPACE

__all__ = [
    "NAMESPACE", "attention", "convolution", "gemm", "linear_attention", "loss", "norm", "rotary", "state_space",
]  # fmt: skip
