"""Times under continuous batching of many layouts at once, on devices of which only the datasheet is known: the load
that the workload puts on each of them, for `serving`.

Stages of a pipeline work on different micro-batches and prompts at the same time: a step takes max(all stages,
micro-batches * slowest stage), or all sequences pass one stage after another, if that is faster; a prompt of C chunks
(the last one may be a part) takes all stages and C - 1 times the slowest, and prompts follow one another at the pace of
the slowest. Groups of ranks with attention of their own prefill side by side: a pass has prompts of all of them.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import NamedTuple

import msgspec
import numpy as np

from dayzero.arrays import Value
from dayzero.data.efficiency import EngineFigures
from dayzero.placement.many import Layouts
from dayzero.placement.memory import sequences_per_replica
from dayzero.placement.precision import weights_at_most_8_bits
from dayzero.schema import ModelSpec, Target

from .collectives import exposed
from .hops import Hop, Hops
from .measured import operators
from .serving import Load
from .speeds import Shares
from .stage import Rows
from .terms import Terms, terms
from .timing import pass_seconds
from .work import Step, decode_step, prefill_step

WIDE = 8
"""Groups with attention of their own above which experts count as spread widely."""
_NOT_ADDED = ("rows", "expert_rows", "whole_experts")
"""Fields of `Terms` that do not grow with what a pass does."""


class Pass(NamedTuple):
    """A pass through all stages of a pipeline."""

    terms: Terms
    """One stage after another."""
    seconds: Value
    """The same in seconds."""
    slowest: Value
    """Seconds of the slowest stage."""

    def taking(self, seconds: Value) -> Terms:
        """The terms of as much work as takes that long."""
        return scaled(self.terms, seconds / self.seconds)


def scaled(one: Terms, factor: Value) -> Terms:
    """So many passes."""
    return replace(one, **{field.name: getattr(one, field.name) * factor for field in fields(one)
                           if field.name not in _NOT_ADDED})


def moved_seconds(one: Terms, engine: EngineFigures, narrow: float) -> Value:
    """Seconds that a pass takes at least: what it has to move at the stated bandwidth, of caches in at most 8 bits
    where the engine keeps them so. Experts are left out, for uneven routing visits fewer, and what kernels fuse."""
    cached = min(1.0, engine.cache_item) if narrow else 1.0
    return one.linear_bytes + one.state_bytes + cached * (one.cache_bytes + one.latent_bytes)


@dataclass(frozen=True)
class Batching:
    """Layouts, and what their passes are counted with."""

    model: ModelSpec
    """What is served."""
    target: Target
    """Where."""
    shares: Shares
    """What its devices reach."""
    layouts: Layouts
    """How."""
    held: Rows
    """What their stages hold."""
    links: Hops
    """What joins them."""
    draft: Batching | None = None
    """What proposes tokens to each pass, on one stage; None: nothing does, or nothing is known of it."""

    def bare(self, step: Step) -> tuple[Terms, Step]:
        """A pass on each kind of stage without what it sends on, and the step of each row."""
        held, wide = self.held, msgspec.structs.replace(step, sequences=self.held.spread(step.sequences))
        made = terms(self.model, held.layouts, self.target, wide, self.shares.common, held.stage)
        tables = operators(self.target, self.shares)
        return tables.corrected(made, self.model, held.layouts, held.stage, wide) if tables else made, wide

    def stage_seconds(self, step: Step) -> Value:
        """Seconds of a pass on each kind of stage without what it sends on, for each row."""
        return self._seconds(self.bare(step)[0], step)

    def passing(self, step: Step) -> Pass:
        """A pass through all stages."""
        held, hop = self.held, self.links.all
        bare, wide = self.bare(step)
        together = replace(bare, **{field.name: (held.any if field.name in _NOT_ADDED else held.total)(
            getattr(bare, field.name)) for field in fields(bare)})
        each = self._sending(bare, self.links.worst, self.links.worst.bytes(self.model, held.layouts, wide), step)
        together = self._sending(together, hop, hop.bytes(self.model, self.layouts, step), step)
        return Pass(together, self._seconds(together, step), held.most(self._seconds(each, step)))

    def _sending(self, made: Terms, hop: Hop, sent: Value, step: Step) -> Terms:
        """With what goes to the next stage, and without what of all sending is hidden behind computing."""
        made = replace(made, sent=made.sent + sent * hop.pace,
                       latency=made.latency + step.passes * hop.latency + sent * hop.reached)
        overlap = self.target.cluster.overlap
        if not overlap:
            return made
        computing = self._seconds(replace(made, sent=0.0 * made.sent, latency=0.0 * made.latency), step)
        sending = self._seconds(made, step) - computing
        left = exposed(sending, computing, overlap) / np.where(sending > 0, sending, 1.0)
        return replace(made, sent=made.sent * left, latency=made.latency * left)

    def _seconds(self, made: Terms, step: Step) -> Value:
        shares = self.shares
        return pass_seconds(made, shares.generation, shares.engine, shares.common, prefill=step.phase == "prefill",
                            narrow=self.narrow)

    @property
    def narrow(self) -> float:
        """1: weights have at most 8 bits."""
        return float(weights_at_most_8_bits(self.model))

    def decoding(self, room: Value, in_flight: bool = True) -> tuple[Step, Value]:
        """(one of as many micro-batches of a decode step, micro-batches). `in_flight`: whether the stages of a pipeline
        work on micro-batches at the same time; else on all sequences, one stage at a time."""
        sequences = np.minimum(sequences_per_replica(self.target.workload, self.layouts),
                               np.maximum(room // self.layouts.dp, 1))
        return self.parted(sequences, in_flight)

    def parted(self, sequences: Value, in_flight: bool = True) -> tuple[Step, Value]:
        """The same for so many sequences of each replica."""
        stages = self.layouts.pp
        parts = np.clip(np.floor(sequences), 1, stages) if in_flight else np.ones_like(stages)
        return decode_step(self.target, sequences / parts), parts

    def answering(self, step: Step, parts: Value) -> Terms:
        """A decode step of all micro-batches, each with the passes of the draft, which the last stage computes."""
        made, drafting = self.passing(step), 0.0
        if self.draft:
            proposed = msgspec.structs.replace(step, tokens=1, scored=1)
            drafting = self.target.workload.draft_tokens * self.draft.passing(proposed).seconds
        return made.taking(np.maximum(made.seconds + drafting, parts * (made.slowest + drafting)))

    def decodes(self, room: Value) -> tuple[Terms, Terms]:
        """(a decode step, one with one stage at work at a time): with micro-batches in flight where that is faster."""
        single = self.answering(*self.decoding(room, in_flight=False))
        if not np.any(self.layouts.pp > 1):
            return single, single
        busy, step = self.answering(*self.decoding(room)), decode_step(self.target, 1)
        faster = self._seconds(busy, step) < self._seconds(single, step)
        return replace(single, **{field.name: np.where(faster, getattr(busy, field.name), getattr(single, field.name))
                                  for field in fields(single)}), single

    def load(self, room: Value, decode: Terms | None = None) -> Load:
        """What the workload puts on them. `room`: sequences of full length that fit, over all replicas; `decode`: the
        first of `decodes`, where it is known."""
        layouts, workload = self.layouts, self.target.workload
        requests = 1.0 * workload.concurrency
        held = np.clip(room, 1, requests)
        step = prefill_step(self.target)
        alone, chunks = self.passing(step), max(1.0, workload.computed_tokens / workload.max_batched_tokens)
        prompts = np.clip(workload.max_batched_tokens // workload.computed_tokens, 1,
                          np.maximum(sequences_per_replica(workload, layouts), 1))
        inner, spread = layouts.tp // layouts.attention_degree, np.maximum(layouts.ep // layouts.tp, 1)
        full = self.passing(prefill_step(self.target, prompts * inner, filled=True))
        return Load(
            decode=self.decodes(room)[0] if decode is None else decode,
            alone=alone.taking((alone.seconds + (chunks - 1) * alone.slowest) / chunks),
            together=full.taking(full.slowest), prompts=prompts, stages=alone.seconds / alone.slowest,
            requests=requests, held=held,
            groups=layouts.dp * inner,
            output=workload.output_tokens / workload.acceptance_length,
            narrow=self.narrow, wide=1.0 * (spread > WIDE), apart=0.0, unstated=0.0,
            batch=held / (layouts.dp * inner), schedulers=layouts.dp * inner)
