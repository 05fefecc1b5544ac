"""What the ranks of a layout send each other in one step, and how long that takes.

Ranks are numbered with tp innermost, then pp, then dp, so a tp group is tp neighbouring devices and all stages of one
replica are tp * pp neighbouring ones. Each collective takes the slowest link that its group needs.
"""

from __future__ import annotations

from math import ceil, log2

import numpy as np

from dayzero.ops import distinct_experts
from dayzero.placement.memory import value_bytes
from dayzero.schema import Cluster, Layout, Link, ModelSpec

from .speeds import Speeds, Triple
from .timing import MICRO
from .work import Step

LOGIT_ITEM = 4
"""Bytes of one gathered logit: fp32."""


class Traffic:
    """Times of the collectives of one layout of one model on a cluster."""

    def __init__(self, model: ModelSpec, layout: Layout, cluster: Cluster, speeds: Speeds) -> None:
        self.model, self.layout, self.cluster, self.speeds = model, layout, cluster, speeds

    def seconds(self, link: Link, messages: float, sent: float) -> Triple:
        """Time of `messages` small messages one after another and `sent` bytes from each device."""
        times: Triple = messages * link.latency * self.speeds.waiting + sent / (link.bandwidth * self.speeds.link)
        return times

    def collectives(self, link: Link, times: float, messages: float, micro: float, sent: float) -> Triple:
        """Time of `times` collectives of `messages` small messages each and `sent` bytes in all; where the shares of
        the device are known, a collective takes `micro` microseconds instead, and over the network some more."""
        shares = self.speeds.shares
        if shares is None:
            return self.seconds(link, times * messages, sent)
        far = shares.common.far_call if link is self.cluster.network else 0.0
        calls = times * (micro + far) * MICRO * self.speeds.waiting
        taken: Triple = calls + sent / (link.bandwidth * self.speeds.link)
        return taken

    def residual(self, step: Step) -> float:
        """Bytes of the residual stream of one pass."""
        return step.rows * self.model.hidden_size * value_bytes(self.model)

    def tensor_parallel(self, layers: range, step: Step) -> Triple:
        """Two all-reduces of the residual stream a layer, after attention and after the feed-forward block; attention
        that is not split needs none. A ring sends 2 (n-1)/n of the buffer from each rank; the latency is that of
        reducing and broadcasting over a tree, 2 log2(n) messages."""
        ranks = self.layout.tp
        if ranks == 1:
            return np.zeros(3)
        a_layer = 2 if self.layout.attention_degree > 1 else 1
        times = a_layer * len(layers) * step.passes
        sent = 2 * (ranks - 1) / ranks * self.residual(step)
        own = self.speeds.shares.generation if self.speeds.shares else None
        micro = own.reduce_call + own.reduce_step * log2(ranks) if own else 0.0
        return self.collectives(self.cluster.link(ranks), times, 2 * ceil(log2(ranks)), micro, times * sent)

    def expert_parallel(self, layers: range, step: Step) -> Triple:
        """Dispatch and combine of each layer with experts, when the experts of a layer are spread over several
        replicas; a token goes once to each rank that holds one of its experts. Within one tp group every rank has all
        tokens, and the all-reduce after the block does it."""
        ep, blocks = self.layout.ep, self.model.feed_forwards
        if ep <= self.layout.tp:
            return np.zeros(3)
        sent = messages = 0.0
        for index in layers:
            block = blocks[self.model.layers[index].feed_forward]
            if block.experts:
                copies = distinct_experts(ep, 1, block.visited)
                rows = step.rows / self.layout.tp * copies * (ep - 1) / ep
                messages += 2 * step.passes
                sent += 2 * step.passes * rows * block.input_width * value_bytes(self.model)
        micro = self.speeds.shares.common.exchange_call if self.speeds.shares else 0.0
        link = self.cluster.link(min(ep * self.layout.pp, self.cluster.world_size))
        return self.collectives(link, messages, 1, micro, sent)

    def _boundary(self, stage: int) -> Link:
        """The link between a stage and the next: the network where in any replica the stage ends a node, or where
        stages lie across the edges of nodes; else one inside a node."""
        layout, node, tp = self.layout, self.cluster.devices_per_node, self.layout.tp
        stages = node // tp  # in a node; the replicas' stages follow one another, and after so many replicas repeat
        crosses = node % tp > 0 or any((replica * layout.pp + stage + 1) % stages == 0
                                       for replica in range(min(layout.dp, stages)))
        if crosses and self.cluster.nodes > 1:
            return self.cluster.link(self.cluster.world_size)
        return self.cluster.link(node if node % (2 * tp) else 2 * tp)

    def to_next_stage(self, stage: int, step: Step) -> Triple:
        """The residual stream of one step to the next stage; each tp rank sends its share."""
        return self.seconds(self._boundary(stage), step.passes, step.passes * self.residual(step) / self.layout.tp)

    def logits(self, step: Step, broadcast: bool) -> Triple:
        """The vocabulary's logits of each sequence, gathered over tp; then what the other stages need: the chosen token
        (a message), or all logits with `broadcast`, as the reference runtime does it."""
        tp, pp = self.layout.tp, self.layout.pp
        size = step.sequences * self.model.vocab_size * LOGIT_ITEM
        total: Triple = np.zeros(3)
        if tp > 1:
            total = total + self.seconds(self.cluster.link(tp), ceil(log2(tp)), (tp - 1) / tp * size)
        if pp > 1:
            link = self.cluster.link(min(tp * pp, self.cluster.world_size))
            total = total + self.seconds(link, ceil(log2(pp)), size if broadcast else 0)
        return total
