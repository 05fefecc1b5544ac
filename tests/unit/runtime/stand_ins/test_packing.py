"""Helpers around packed sequences, by hand."""

import torch

from dayzero.runtime.stand_ins import packing

MASK = torch.tensor([[0, 1, 1], [1, 1, 1], [0, 0, 1]])


def test_padding_goes_and_comes_back() -> None:
    x = torch.arange(9.0).view(3, 3, 1) + 1
    rows, indices, offsets, longest = packing.unpad_input(x, MASK)
    assert rows.flatten().tolist() == [2, 3, 4, 5, 6, 9]
    assert indices.tolist() == [1, 2, 3, 4, 5, 8]
    assert offsets.tolist() == [0, 2, 5, 6]
    assert offsets.dtype is torch.int32
    assert longest == 3
    assert torch.equal(packing.pad_input(rows, indices, 3, 3), x * MASK[..., None])
    assert torch.equal(packing.fla_pad_input(rows, indices, batch_size=3, seq_len=3), x * MASK[..., None])
    assert torch.equal(packing.index_first_axis(x[0], torch.tensor([2, 2])), x[0, [2, 2]])


def test_without_values_nothing_is_padding() -> None:
    rows, indices, offsets, longest = packing.unpad_input(torch.empty(2, 5, 7, device="meta"),
                                                          torch.empty(2, 5, device="meta"))
    assert (rows.shape, indices.shape, offsets.shape, longest) == ((10, 7), (10,), (3,), 5)


def test_indices_of_packed_sequences() -> None:
    ends = packing.prepare_cu_seqlens_from_mask(MASK)
    assert packing.prepare_lens(ends).tolist() == packing.prepare_lens_from_mask(MASK).tolist() == [2, 3, 1]
    assert packing.prepare_position_ids(ends).tolist() == [0, 1, 0, 1, 2, 0]
    assert packing.prepare_sequence_ids(ends).tolist() == [0, 0, 1, 1, 1, 2]
    assert packing.prepare_token_indices(ends)[3].tolist() == [1, 1]
    assert packing.prepare_chunk_offsets(ends, 2).tolist() == [0, 1, 3, 4]
    assert packing.prepare_chunk_indices(ends, 2).tolist() == [[0, 0], [1, 0], [1, 1], [2, 0]]


def test_results_are_kept_for_the_same_objects_only() -> None:
    calls = []
    function = packing.tensor_cache(lambda x, scale=1: calls.append(x) or x.sum() * scale)
    one, other = torch.ones(2), torch.ones(2)
    assert function(one) is function(one)
    function(other), function(one, scale=2)
    assert len(calls) == 3
    for _ in range(4):
        function(torch.ones(1))
    function(one)
    assert len(calls) == 8


def test_decorators_change_nothing() -> None:
    def function() -> None: ...

    assert packing.as_it_is(function) is function
    assert packing.as_it_is("old", version="1")(function) is function
    assert packing.as_it_is(no_guard_contiguous=True)(function) is function
