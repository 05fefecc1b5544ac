"""Relations between sequences: whom they are with, in which order, with which padding, and what comes later."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from dayzero.schema.relation import Held

from .subject import Subject, distance

LENGTH, BATCH, PAD = 37, 3, 5
"""Odd sizes: nothing is a multiple of a block."""


def sequences(subject: Subject) -> Iterator[Held]:
    """All of them."""
    ids = subject.tokens(BATCH, LENGTH)
    together = subject.logits(ids)
    alone = torch.cat([subject.logits(row[None]) for row in ids])
    yield subject.held("a batch gives what its sequences give alone", together, alone, ids)
    order = list(reversed(range(BATCH)))
    yield subject.held("sequences in another order", subject.logits(ids[order])[order], together, ids)
    yield _same_again(subject, ids[:1])
    yield _later(subject, ids[:1], together[:1])
    yield from _padded(subject, ids[:2], together[:2])


def _same_again(subject: Subject, ids: torch.Tensor) -> Held:
    """What ran in between leaves nothing behind."""
    first = subject.logits(ids)
    subject.pieces(subject.tokens(1, LENGTH), [LENGTH - 1, 1])
    return Held(name="the same again, with another sequence in between", observed=distance(subject.logits(ids), first),
                tolerance=0.0, source="bits are compared")


def _later(subject: Subject, ids: torch.Tensor, whole: torch.Tensor) -> Held:
    """A mask that lets one token through shows in the last position before the change."""
    worst, at = 0.0, 0
    for cut in (1, LENGTH // 2, LENGTH - 1):
        other = ids.clone()
        other[:, cut:] = (other[:, cut:] + 1) % subject.vocabulary
        found = distance(subject.logits(other)[:, :cut], whole[:, :cut])
        worst, at = max((worst, at), (found, cut))
    noise = subject.held("", whole, whole, ids)
    return Held(name="later tokens change nothing before them", observed=worst, tolerance=noise.tolerance,
                source=noise.source, detail=f"largest with tokens from {at} on changed" if worst else "")


def _padded(subject: Subject, ids: torch.Tensor, whole: torch.Tensor) -> Iterator[Held]:
    batch, length = ids.shape
    pad, ones = torch.zeros((batch, PAD), dtype=torch.long), torch.ones((batch, length), dtype=torch.long)
    after = subject.logits(torch.cat([ids, pad], 1), attention_mask=torch.cat([ones, pad], 1))
    yield subject.held("padding after the sequence", after[:, :length], whole, ids)
    before = subject.logits(
        torch.cat([pad, ids], 1), attention_mask=torch.cat([pad, ones], 1),
        position_ids=torch.cat([pad, torch.arange(length).expand(batch, -1)], 1))
    yield subject.held("padding before the sequence", before[:, PAD:], whole, ids)
