"""Parts of a decoder's forward pass, and the weights that they are found by."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from dayzero.data.vocabulary import form_of
from dayzero.placement.operators import Operator, takes_part
from dayzero.schema import Attention, ModelSpec, WeightFamily

Axes = dict[str, float | str]
ROWS = "batch * tokens"
"""New tokens of all sequences."""
KEYS = "context + tokens"
"""Tokens of one sequence that a query may see at most."""
ROUTER_ITEM = 4
"""Bytes of a router's score: fp32, so that close ones are told apart."""


class Part(NamedTuple):
    """One operation, for all layers that have it."""

    op: str
    variant: str
    module: str
    layers: tuple[int, ...]
    axes: Axes
    times: int = 1


@dataclass(frozen=True)
class Weight:
    """A weight family with what stands beside it: its scales, and its module."""

    family: WeightFamily
    module: str
    """Its module's path, with `{L}`, and `{E}` of an expert."""
    item: float
    """Bytes that a weight takes, its share of scales included."""

    @property
    def values(self) -> int:
        """Logical values of one matrix, or of one expert's."""
        stacked = max(1, self.family.experts) if "{E}" not in self.family.pattern else 1
        return self.family.parameters // (self.family.count * stacked)

    @property
    def word(self) -> str:
        """First part of the role."""
        return self.family.role.split(".")[0]


def weights_of(model: ModelSpec) -> Iterator[Weight]:
    """The families that a pass over text uses and that are weights themselves: no biases, scales or buffers."""
    stored: dict[str, int] = {}
    owners: dict[str, list[WeightFamily]] = {}
    for family in model.families:
        if not takes_part(family, model):
            continue
        form, module = form_of(family.pattern)
        stored[module] = stored.get(module, 0) + (0 if form == "bias" else family.stored_bytes)
        if family.parameters and form in ("weight", "packed", "packed_transposed"):
            owners.setdefault(module, []).append(family)
    for module, families in owners.items():
        values = sum(family.parameters for family in families)
        for family in families:
            is_table = family.dtype.startswith(("I", "U", "BOOL")) and family.dtype.lower() == family.scheme
            if not is_table:  # of indices: not quantised, and integers all the same
                yield Weight(family, module, stored[module] / values)


def attention_of(family: WeightFamily, model: ModelSpec) -> Attention:
    """The kind of attention of the family's first layer."""
    return model.attentions[model.layers[family.layers[0] if family.layers else 0].attention]


def sides_of(weight: Weight, model: ModelSpec) -> tuple[int, int] | None:
    """(outer, inner) of a matrix; None: it is none. Of a packed one, and of one that is stored the other way round, the
    width that its role reads tells the sides."""
    family, values, reads = weight.family, weight.values, _reads(weight.family, model)
    if len(family.shape) < 2 or not _is_matrix(weight):
        return None
    if prod(family.shape) == values and len(family.shape) == 2:
        outer, inner = family.shape
        return (inner, outer) if reads and inner != reads == outer else (outer, inner)
    inner = reads if reads and values % reads == 0 else family.shape[-1]
    return values // inner, inner


def _is_matrix(weight: Weight) -> bool:
    """Whether it is multiplied with: what has more than two axes and only one that counts is a vector, and what is not
    called a weight is added, unless it mixes residual streams."""
    shape, (form, _) = weight.family.shape, form_of(weight.family.pattern)
    is_vector = len(shape) > 2 and sum(size > 1 for size in shape) < 2
    named = form != "weight" or weight.family.pattern.endswith("weight") or weight.word == "residual"
    return named and not is_vector


def _reads(family: WeightFamily, model: ModelSpec) -> int | None:
    """Width of what is multiplied with a family of that role; None: nothing tells."""
    layer = model.layers[family.layers[0] if family.layers else 0]
    attention, block = model.attentions[layer.attention], model.feed_forwards[layer.feed_forward]
    widths = {"attention.o": attention.heads * attention.v_head_dim, "attention.q_up": attention.q_rank,
              "attention.kv_up": attention.kv_rank, "mlp.down": block.width, "shared_experts.down": block.shared_width,
              "latent_experts.up": block.input_width}
    if family.role == "attention.o" and attention.output_groups:
        return None
    return widths.get(family.role) or model.hidden_size


def for_all_rows(operator: Operator, module: str, layers: tuple[int, ...]) -> Part:
    """An operator for one row as a part for all rows of a pass."""
    axes: Axes = {name: _rows(length) if name in ("tokens", "elements") else length
                  for name, length in operator.axes.items()}
    return Part(operator.op, operator.variant, module, layers, axes, operator.times)


def _rows(each: float) -> str:
    return ROWS if each == 1 else f"{ROWS} * {int(each)}"
