"""What is written into pages is what comes out of them, wherever it has been meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from dayzero.runtime.pages import ALL, CorruptPages, Grown, LayerKind, Pages, Room, Row, Step  # noqa: E402
from dayzero.runtime.pages.step import Copied, Swapped, Trimmed, decode, encode  # noqa: E402

_KINDS = (LayerKind(window=ALL), LayerKind(window=6), LayerKind(states=1))


def _pages(folder: Path | None = None) -> Pages:
    pages = Pages(_KINDS, block_tokens=4, folder=folder)
    pages.allocate(Room(3, (12, 48, 12)))
    return pages


def _step(number: int, sequence: int, blocks: tuple[int, ...], slot: int) -> Step:
    """Blocks of 4 tokens, and of one where the window is."""
    short = tuple(4 * block + index for block in blocks for index in range(4))
    return Step(number, changes=(Grown(sequence, 0, blocks), Grown(sequence, 1, short), Grown(sequence, 2, (slot,))))


def _write(pages: Pages, row: Row, seed: int) -> list[torch.Tensor]:
    torch.manual_seed(seed)
    with pages.calling((row,)):
        return _fill(pages, len(row.tokens))


def _fill(pages: Pages, new: int) -> list[torch.Tensor]:
    """What a model does in a call of so many tokens."""
    keys, values, state = torch.randn(1, 2, new, 3), torch.randn(1, 2, new, 5), torch.randn(1, 4, 3)
    found = [part.clone() for layer in (0, 1) for part in pages.cache.update(keys, values, layer)]
    pages.cache.update_conv_state(state, 2)
    pages.cache.update_recurrent_state(state, 2)
    assert torch.equal(found[0][:, :, -new:], keys)
    assert torch.equal(found[3][:, :, -new:], values)
    return found


@pytest.mark.filterwarnings("error")
def test_a_rank_without_layers_of_a_group_has_no_places_for_it() -> None:
    """As a stage of a pipeline, whose ranks all carry out the same steps."""
    pages = Pages(_KINDS, block_tokens=4)
    pages.allocate(Room(3, (12, 0, 0)))
    pages.apply(_step(1, 1, (5, 2), 1))
    with pages.calling((Row(1, 0, (0,) * 7),)) as call:
        assert [lines.group for lines in call.spans] == [0]
        assert pages.cache.update(torch.ones(1, 2, 7, 3), torch.ones(1, 2, 7, 5), 0)[0].shape == (1, 2, 7, 3)


def test_rows_of_different_lengths_end_together() -> None:
    pages = _pages()
    pages.apply(_step(1, 1, (5, 2), 1))
    pages.apply(_step(2, 2, (3,), 2))
    long = _write(pages, Row(1, 0, (0,) * 7), 0)
    short = _write(pages, Row(2, 0, (0,) * 2), 1)
    with pages.calling((Row(1, 7, (0,)), Row(2, 2, (0,)))) as call:
        new = torch.ones(2, 2, 1, 3)
        keys = pages.cache.update(new, torch.ones(2, 2, 1, 5), 0)[0].clone()  # the next layer takes its place
        near, _ = pages.cache.update(new, torch.ones(2, 2, 1, 5), 1)
        assert pages.cache.get_mask_sizes(1, 0) == (8, 0)
        assert pages.cache.get_mask_sizes(1, 1) == (6, 2)  # as the library's window of 6: five before, one new
    assert call.mask is not None
    assert call.mask.tolist() == [[1] * 8, [0] * 5 + [1] * 3]
    assert torch.equal(keys[0, :, :7], long[0][0])
    assert torch.equal(keys[1, :, 5:7], short[0][0])
    assert (keys[1, :, :5] == short[0][0, :, :1]).all()  # padding is one of its own tokens
    assert torch.equal(near[0, :, :5], long[2][0, :, 2:])


@pytest.mark.parametrize("tier", ["host", "disk"])
def test_blocks_and_states_come_back_bit_identical(tmp_path: Path, tier: str) -> None:
    pages = _pages(tmp_path)
    pages.apply(_step(1, 1, (5, 2), 1))
    _write(pages, Row(1, 0, (0,) * 7), 0)
    before = pages.export(1, 0, 7)
    step = Step(2, spilled=(Swapped(1, tier, 7),))
    assert pages.apply(decode(encode(step))) == []
    back = Step(3, changes=_step(3, 1, (9, 4), 3).changes, restored=(Swapped(1, tier, 7),))
    assert pages.apply(back) == []
    after = pages.export(1, 0, 7)
    assert after.digest == before.digest
    assert all(torch.equal(after.parts[key], part) for key, part in before.parts.items())
    assert not list(tmp_path.iterdir())


def test_part_of_a_sequence_is_carried_to_other_pages() -> None:
    first, second = _pages(), _pages()
    for pages in (first, second):
        pages.apply(_step(1, 1, (5, 2), 1))
        _write(pages, Row(1, 0, (0,) * 4), 0)
    _write(first, Row(1, 4, (0,) * 3), 1)
    second.absorb(1, first.export(1, 4, 7))
    assert second.export(1, 0, 7).digest == first.export(1, 0, 7).digest


def test_trimmed_blocks_are_not_read() -> None:
    pages = _pages()
    pages.apply(_step(1, 1, (5, 2, 3), 1))
    _write(pages, Row(1, 0, (0,) * 10), 0)
    pages.apply(Step(2, changes=(Trimmed(1, 1, 4),)))
    assert len(pages.export(1, 0, 10).parts[1, "keys", 0]) == 6


def test_copied_blocks_and_states_are_equal() -> None:
    pages = _pages()
    pages.apply(_step(1, 1, (5,), 1))
    _write(pages, Row(1, 0, (0,) * 4), 0)
    short = tuple(Copied(1, 20 + index, 28 + index) for index in range(4))
    pages.apply(Step(2, changes=(Copied(0, 5, 7), *short, Copied(2, 1, 2), *_step(2, 2, (7,), 2).changes)))
    one, other = pages.export(1, 0, 4), pages.export(2, 0, 4)
    assert one.digest == other.digest


def test_states_in_several_chunks_are_as_in_one(tmp_path: Path) -> None:
    """Kept, copied, out of memory and back."""
    found = []
    for room in (Room(3, (12, 48, 12)), Room(12, (12, 48, 1), (1, 1, 2))):
        pages = Pages(_KINDS, block_tokens=4, folder=tmp_path)
        pages.measure(lambda call, cache, pages=pages: _fill(pages, len(call.rows[0].tokens)))  # type: ignore[misc]
        pages.allocate(room)
        assert [slots.unit for *_, slots in pages._slots] == [0, room.span(2) - 1]
        pages.apply(_step(2, 1, (5, 2), 1))
        _write(pages, Row(1, 0, (0,) * 7), 0)
        pages.apply(Step(3, changes=(Copied(2, 1, 2), *_step(3, 2, (7, 8), 2).changes)))
        pages.apply(Step(4, spilled=(Swapped(1, "disk", 7),)))
        back = Step(5, changes=_step(5, 1, (9, 4), 3).changes, restored=(Swapped(1, "disk", 7),))
        assert pages.apply(back) == []
        with pages.calling((Row(1, 7, (0,)), Row(2, 7, (0,)))):
            states = [pages.cache.layers[2].conv_states[0].clone(), pages.cache.layers[2].recurrent_states[0].clone()]
        found.append((pages.export(1, 0, 7).digest, states))
    assert found[0][0] == found[1][0]
    for one, other in zip(found[0][1], found[1][1], strict=True):
        assert torch.equal(one, other) and torch.equal(one[0], one[1]) and one.abs().min() > 0


def test_damage_is_named(tmp_path: Path) -> None:
    pages = _pages(tmp_path)
    pages.apply(_step(1, 1, (5, 2), 1))
    _write(pages, Row(1, 0, (0,) * 7), 0)
    pages.apply(Step(2, spilled=(Swapped(1, "disk", 7),)))
    pages.shelf._files[1].written.result()
    path = next(tmp_path.iterdir())
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CorruptPages, match="cut short"):
        pages.shelf.take(1)


def test_what_cannot_be_written_is_told_to_whom_it_belongs(tmp_path: Path) -> None:
    pages = _pages(tmp_path)
    for sequence, block in ((1, 5), (2, 7)):
        pages.apply(_step(sequence, sequence, (block,), sequence))
        _write(pages, Row(sequence, 0, (0,) * 3), 0)
    (tmp_path / "sequence-1.cache").mkdir()  # in the way
    pages.apply(Step(3, spilled=(Swapped(1, "disk", 3), Swapped(2, "disk", 3))))
    with pytest.raises(OSError, match="sequence-1"):
        pages.shelf._files[1].written.result()
    (tmp_path / "sequence-1.cache").rmdir()
    assert pages.shelf.take(2).tokens == 3
    with pytest.raises(OSError, match="sequence-1"):
        pages.shelf.take(1)
    assert not list(tmp_path.iterdir())
