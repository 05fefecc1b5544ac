"""Parts of tensors that are in memory as they are in the files: quantised weights take their own bytes there, and are
decoded when they are asked for. Needs torch."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from .files import Files
from .pieces import Piece, broken
from .quantised import Block, Quantised
from .reading import DECODED


class Kept:
    """A part of a tensor of the model: pieces that cover it, each with what is stored of it."""

    def __init__(self, held: Iterable[tuple[Piece, Block | torch.Tensor]]) -> None:
        self._held = list(held)

    @classmethod
    def read(cls, pieces: Iterable[Piece], files: Files) -> Kept:
        """From the files. Raises ReleaseError when they cannot be read."""
        return cls((piece, _stored(piece, files)) for piece in pieces)

    @property
    def nbytes(self) -> int:
        """In memory."""
        return sum(each.nbytes for _, each in self._held)

    def to(self, device: torch.device) -> Kept:
        """The same there."""
        return Kept((piece, each.to(device)) for piece, each in self._held)

    def fill(self, out: torch.Tensor) -> None:
        """Put the values into `out`, which has the part's shape, as `Checkpoint.fill` does: the same bits."""
        for piece, held in self._held:
            if isinstance(held, torch.Tensor):
                _box(out, piece).copy_(held)
                continue
            source = held.of
            for part in broken(piece, DECODED):
                rows, columns = source.box(part)
                _box(out, part).copy_(source.placed(held.values(rows, columns), part, columns))


def _stored(piece: Piece, files: Files) -> Block | torch.Tensor:
    if isinstance(piece.source, Quantised):
        return piece.source.block(files, *piece.source.box(piece))
    values: torch.Tensor = piece.source.values(files, piece)
    return values.clone(memory_format=torch.contiguous_format)


def _box(out: torch.Tensor, piece: Piece) -> torch.Tensor:
    return out[tuple(slice(at, at + extent) for at, extent in zip(piece.at, piece.size, strict=True))]
