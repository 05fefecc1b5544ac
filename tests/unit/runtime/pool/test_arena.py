"""Memory of blocks: real, aligned, apart from each other, and no larger than what was asked for."""

from __future__ import annotations

import pytest
import torch

from dayzero.errors import UsageError
from dayzero.runtime.pool import Arena, BestFit, Slab


def test_tensors_lie_on_the_arena_and_apart() -> None:
    pool = BestFit(1 << 16, alignment=64, small=0)
    with Arena(1 << 16, alignment=4096) as arena:
        first, second = pool.take(24), pool.take(100)
        one = arena.tensor(first, (2, 3), torch.float32)
        two = arena.tensor(second, (50,), torch.bfloat16)
        one.fill_(1.5)
        two.fill_(-2)
        assert one.tolist() == [[1.5] * 3] * 2
        assert one.data_ptr() % 4096 == 0
        assert two.data_ptr() - one.data_ptr() == second.offset == 64
        assert arena.bytes(first).view(torch.float32).tolist() == [1.5] * 6


def test_a_tensor_larger_than_its_block_is_refused() -> None:
    pool, arena = BestFit(4096), Arena(4096)
    block = pool.take(24)  # 512 are allocated: what nobody asked for is not for use
    with pytest.raises(UsageError, match="does not fit"):
        arena.tensor(block, (7,), torch.float32)
    with pytest.raises(UsageError, match="cannot lie"):
        arena.tensor(Slab(4096, 3).take(3)._replace(offset=3), (1,), torch.float16)
    with pytest.raises(UsageError, match="beyond"):
        Arena(512).bytes(pool.take(1000))


def test_an_arena_that_is_closed_gives_no_memory() -> None:
    arena = Arena(4096)
    tensor = arena.tensor(BestFit(4096).take(16), (16,), torch.uint8)
    arena.close()
    tensor.fill_(3)  # a tensor keeps the memory that it is on
    with pytest.raises(ValueError, match="closed"):
        arena.bytes(BestFit(4096).take(16))


def test_memory_is_not_pinned_where_no_accelerator_is() -> None:
    if torch.accelerator.is_available():  # also the simulated one, once a test has loaded it
        pytest.skip("an accelerator pins memory")
    with pytest.raises(UsageError, match="pinned"):
        Arena(4096, pinned=True)
