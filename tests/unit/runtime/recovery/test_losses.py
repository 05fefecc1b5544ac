"""What is kept of ranks and spares that were lost."""

from __future__ import annotations

import time

from dayzero.runtime.recovery.losses import Losses, told
from dayzero.schema import Layout, Lost


def test_a_loss_is_open_until_a_token_comes() -> None:
    losses = Losses()
    losses.token()  # nothing was lost: nothing to say
    losses.loaded(7, whole=True)
    assert not losses.open and losses.told == ()
    losses.add(Lost(epoch=1, ranks=(0, 2), reason="rank 0 x; rank 2 y", layout=Layout(pp=3), taken_over=True),
               time.monotonic() - 2.0)
    losses.loaded(100, whole=False)
    assert losses.open and losses.ranks[0].joined_s == 0.0
    losses.loaded(50, whole=True)
    losses.token()
    losses.loaded(1, whole=True)  # of a later epoch: not of this loss
    assert not losses.open and losses.ranks[0].read_bytes == 150
    assert 2.0 <= losses.ranks[0].joined_s <= losses.ranks[0].token_s < 10.0
    assert losses.told == (f"rank 0 x; rank 2 y: their places were taken over, {losses.ranks[0].token_s:.1f} s until "
                           "it went on",)


def test_spares_are_told_after_ranks() -> None:
    losses = Losses()
    assert losses.spare("was ended by SIGKILL", again=False) == "a spare was ended by SIGKILL: it is not replaced"
    losses.spare("ended with exit code 1", again=True)
    losses.add(Lost(epoch=1, ranks=(1,), reason=told({1: "hung"}), layout=Layout(), taken_over=False), 0.0)
    assert [line.partition(":")[0] for line in losses.told] == [
        "rank 1 hung", "a spare was ended by SIGKILL", "a spare ended with exit code 1"]
