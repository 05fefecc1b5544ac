"""State space with an input-dependent step: the scan of Mamba (a decay for each channel and element of the state,
head_dim = 1) and of Mamba-2 (one decay for a head).

state <- exp(dt a) * state + dt x b, output = c . state. Mamba-2 goes in chunks (arXiv:2405.21060, section 6); a chunk
of 1 is the scan token by token, which is what Mamba's kernels and every decode step do.
"""

from __future__ import annotations

from math import ceil

from .definition import Axes, OpDefinition, TensorSpec

_INPUT = TensorSpec(name="input", axes=("sequences", "tokens", "heads", "head_dim"))
_IN_MATRIX = TensorSpec(name="b", axes=("sequences", "tokens", "groups", "state_dim"))
_OUT_MATRIX = TensorSpec(name="c", axes=("sequences", "tokens", "groups", "state_dim"))
_STEP = TensorSpec(name="dt", axes=("sequences", "tokens", "heads"))
_STATE = TensorSpec(name="state", axes=("sequences", "heads", "head_dim", "state_dim"), item="state_item")
_OUTPUT = TensorSpec(name="output", axes=("sequences", "tokens", "heads", "head_dim"))


def flops(axes: Axes) -> float:
    """Token by token, for each element of the state: decay 1, input times b and its sum 2, c . state 2. In chunks of C,
    for each token: c b' inside the chunk, C * 2 * groups * state_dim; its product with the inputs,
    C * 2 * heads * head_dim; the chunk's state and its share of the output, 4 * heads * head_dim * state_dim."""
    rows = axes["sequences"] * axes["tokens"]
    state = axes["heads"] * axes["head_dim"] * axes["state_dim"]
    size = min(axes["chunk"], axes["tokens"])
    if size == 1:
        return rows * 5 * state
    return rows * (4 * state + size * 2 * (axes["groups"] * axes["state_dim"] + axes["heads"] * axes["head_dim"]))


def moved_bytes(axes: Axes) -> float:
    """Input, b, c, dt and output once; the state read and written once for each chunk, and once in all when the scan
    goes token by token in one kernel."""
    rows = sum(tensor.bytes(axes) for tensor in (_INPUT, _IN_MATRIX, _OUT_MATRIX, _STEP, _OUTPUT))
    passes = ceil(axes["tokens"] / axes["chunk"]) if axes["chunk"] > 1 else 1
    return rows + 2 * passes * _STATE.bytes(axes)


DEFINITION = OpDefinition(
    name="state_space",
    summary="state <- exp(dt a) * state + dt x b; output = c . state",
    axes={"sequences": "sequences", "tokens": "new tokens of each sequence", "heads": "heads, or channels",
          "head_dim": "width of a head; 1 when each channel has its own decay", "groups": "groups that share b and c",
          "state_dim": "width of the state", "chunk": "tokens that share one pass over the state; 1: token by token",
          "item": "bytes of an activation value", "state_item": "bytes of a value of the state"},
    inputs=(_INPUT, _STEP, _IN_MATRIX, _OUT_MATRIX, _STATE),
    outputs=(_OUTPUT, _STATE),
    flops=flops,
    bytes=moved_bytes,
    source="arXiv:2312.00752 (scan), arXiv:2405.21060 (chunked form); operations counted from the formulas",
)
