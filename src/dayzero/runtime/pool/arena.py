"""One range of real memory whose parts are used as tensors, so that nothing is allocated while a model runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dayzero.errors import UsageError
from dayzero.units import format_bytes

from .base import Block, round_up

if TYPE_CHECKING:
    import torch


class Arena:
    """`nbytes` on a device; on the host it may be pinned, where an accelerator can copy from pinned memory.

    Its first byte is at a multiple of `alignment`. Raises UsageError where pinned memory is asked for and there is no
    accelerator, or it is not host memory; what torch raises where the device is full.
    """

    def __init__(self, nbytes: int, device: torch.device | str = "cpu", *, pinned: bool = False,
                 alignment: int = 4096) -> None:
        import torch

        self.nbytes, self.device, self.pinned = nbytes, torch.device(device), pinned
        if pinned and (self.device.type != "cpu" or not torch.accelerator.is_available()):
            raise UsageError(f"memory of {self.device} cannot be pinned here",
                             "leave pinned out: only host memory is pinned, and only where an accelerator is")
        whole = torch.empty(nbytes + alignment - 1, dtype=torch.uint8, device=self.device, pin_memory=pinned)
        first = round_up(whole.data_ptr(), alignment) - whole.data_ptr()
        self._memory: torch.Tensor | None = whole[first : first + nbytes]

    def bytes(self, block: Block) -> torch.Tensor:
        """The bytes that were asked for, as a uint8 tensor on the arena's memory."""
        if self._memory is None:
            raise ValueError("the arena is closed")
        if block.offset + block.requested > self.nbytes:
            raise UsageError(f"{block} ends beyond an arena of {format_bytes(self.nbytes)}",
                             "take blocks from an allocator of the arena's size")
        return self._memory[block.offset : block.offset + block.requested]

    def tensor(self, block: Block, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """A contiguous tensor on the first bytes of a block; no copy. Its values are whatever was there before.

        Raises UsageError for one that is larger than what was asked for, or lies at no multiple of its item size.
        """
        nbytes = math.prod(shape) * dtype.itemsize
        if nbytes > block.requested:
            raise UsageError(f"a tensor of {nbytes} bytes does not fit a block of {block.requested}",
                             "take a larger one")
        if block.offset % dtype.itemsize:
            raise UsageError(f"{dtype} cannot lie at byte {block.offset}", "take blocks with a larger alignment")
        return self.bytes(block)[:nbytes].view(dtype).view(tuple(shape))

    def close(self) -> None:
        """Let go of the memory; it is freed when the last tensor on it is gone."""
        self._memory = None

    def __enter__(self) -> Arena:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
