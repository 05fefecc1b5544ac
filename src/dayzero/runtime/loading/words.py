"""Matrices that lie [in, out], of integers in words of 32 bits: along the inputs as GPTQ writes them, or along the
outputs, the even ones first, as AWQ does. Which of the two, and how many bits, the shapes tell. Needs torch.

    GPTQ    value = scale of (group of the input, output) x (code - (stored zero point + 1)), words [in / n, out], zero
            points [groups, out / n], n values in a word; the group of each input in g_idx; some formats store zero
            points as they are (quantisation.toml, zero_less)
    AWQ     value = scale x (code - zero point), words [in, out / 8], of the outputs 0 2 4 6 1 3 5 7 from the lowest
            bits on
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dayzero.data.quantisation import statements

from .codes import dense, padded
from .files import Files, Stored
from .quantised import Quantised
from .sources import items

ENDING = "g_idx"
"""Of the name of the tensor that has the group of each input."""
_WORD = 32
_BITS = range(2, 9)
_LESS = 1
_EVEN_FIRST = (0, 4, 1, 5, 2, 6, 3, 7)
"""Where the output 0, 1 ... of a word lies in it."""
_Members = Sequence[tuple[str, str, Stored]]


def turned(files: Files, weight: Stored, scale: Stored, members: _Members, config: Mapping[str, Any]
           ) -> Quantised | None:
    """The matrix; None for a layout that is not known. `members`: (form, ending of the name, tensor)."""
    zeros = next((each for form, _, each in members if form == "zero_point"), None)
    numbers = next((each for _, end, each in members if end.endswith(ENDING)), None)
    if weight.dtype != "I32" or len(weight.shape) != 2 or len(scale.shape) != 2 or not all(scale.shape):
        return None
    groups, outputs = scale.shape
    if weight.shape[1] == outputs:
        bits = _bits(weight, zeros, numbers, outputs, config)
        if bits not in _BITS:
            return None
        packing, zero_packing, less = dense(bits, axis=0), dense(bits), _zero_less(config)
        inputs = weight.shape[0] * _WORD // bits
    else:
        inputs, bits = weight.shape[0], weight.shape[1] * _WORD // outputs
        packing = zero_packing = padded(4)._replace(order=_EVEN_FIRST)
        less = 0
        if bits != packing.bits or weight.shape[1] != packing.extent(outputs):
            return None
    size = _group(inputs, groups, config)
    if not (size and less is not None and _fits(zeros, groups, zero_packing.extent(outputs))
            and _fits(numbers, None, inputs)):
        return None
    return Quantised(weight, scale, "words", (inputs, outputs), (size, 1), (groups, outputs), packing=packing,
                     zeros=zeros, zero_packing=zero_packing if zeros else None, zero_less=less, turned=True,
                     groups=None if numbers is None or _in_order(files, numbers, size) else numbers)


def _bits(weight: Stored, zeros: Stored | None, numbers: Stored | None, outputs: int, config: Mapping[str, Any]) -> int:
    """By the number of inputs, or of zero points, or as the config states them; 0: neither tells."""
    if numbers is not None and numbers.shape and numbers.shape[0]:
        return weight.shape[0] * _WORD // numbers.shape[0]
    if zeros is not None and len(zeros.shape) == 2:
        return zeros.shape[1] * _WORD // outputs
    stated = [config.get(key) for key in statements().weight_bits]
    return next((each for each in stated if isinstance(each, int) and not isinstance(each, bool)), 0)


def _zero_less(config: Mapping[str, Any]) -> int | None:
    """What zero points are stored less by; None for a format that is not known."""
    stated = [(known, config[key]) for key, known in statements().zero_less.items() if isinstance(config.get(key), str)]
    return next((known.get(value) for known, value in stated), _LESS)


def _group(inputs: int, groups: int, config: Mapping[str, Any]) -> int:
    """Neighbouring inputs of a group: as the config states it where that fits, else evenly; 0: it does not come out."""
    stated = [config.get(key) for key in statements().group_sizes]
    for size in (*(each for each in stated if isinstance(each, int) and each > 0), -(-inputs // groups)):
        if -(-inputs // size) == groups:
            return size
    return 0


def _fits(tensor: Stored | None, rows: int | None, columns: int) -> bool:
    """Whether it is not there or has that shape."""
    return tensor is None or (tensor.dtype in ("I32", "I64") and tensor.shape == (
        (columns,) if rows is None else (rows, columns)))


def _in_order(files: Files, numbers: Stored, size: int) -> bool:
    """Whether groups are of neighbours."""
    found = items(files, numbers, 0, numbers.shape[0])
    return bool((found == found.new_tensor(range(len(found))) // size).all())
