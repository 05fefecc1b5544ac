"""What code computes again in a decode step for tokens that are in the cache: a latent that is expanded to keys and
values anew. Such a product has a row for each token in the cache and each new one. Its call is written down as two: the
new tokens' share, a linear as any other that also reads the weight, and the rest, an expansion. No torch."""

from __future__ import annotations

from math import prod

from .captured import ITEM, Call
from .kinds import BIAS_FIRST, plain
from .step import Step

EXPANSION = "expansion"
"""Kind of the share of tokens in the cache."""


def shares(call: Call, step: Step) -> tuple[Call, ...]:
    """The linear and the expansion that a call is; the call alone where it is no linear, or has other rows."""
    at, every = int(plain(call.op) in BIAS_FIRST), step.context + step.tokens
    if call.kind != "linear" or not step.context or len(call.inputs) < at + 2 or not call.outputs:
        return (call,)
    if prod(call.inputs[at][:-1]) != step.batch * every or call.inputs[at][:-1] != call.outputs[0][:-1]:
        return (call,)
    width = call.inputs[at][-1] + call.outputs[0][-1]
    moved = step.batch * step.context * width * int(ITEM.get(call.dtype, 2))
    again = call.flops * step.context // every
    return (_of(call, at, step, step.tokens)._replace(flops=call.flops - again, bytes=call.bytes - moved),
            _of(call, at, step, step.context)._replace(kind=EXPANSION, flops=again, bytes=moved))


def _of(call: Call, at: int, step: Step, tokens: int) -> Call:
    """The call with the rows of so many tokens of each sequence."""
    def cut(shape: tuple[int, ...]) -> tuple[int, ...]:
        rows = (step.batch, *(1 for _ in shape[3:]), tokens) if len(shape) > 2 else (step.batch * tokens,)
        return (*rows, shape[-1])

    inputs = tuple(cut(shape) if number == at else shape for number, shape in enumerate(call.inputs))
    return call._replace(inputs=inputs, outputs=(cut(call.outputs[0]), *call.outputs[1:]))
