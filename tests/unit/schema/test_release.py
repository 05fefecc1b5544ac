from __future__ import annotations

from dayzero.schema import Column, TensorGroup, TensorTable


def group(pattern: str, shape: tuple[int, ...], dtype: str, rows: list[tuple[int, int]]) -> TensorGroup:
    layers, experts = zip(*rows, strict=True)
    return TensorGroup(pattern=pattern, shape=shape, dtype=dtype, layer=Column(layers), expert=Column(experts),
                       file=Column([0] * len(rows)), start=Column(range(len(rows))))


def test_names_and_bytes_of_patterns() -> None:
    # One expert matrix of Kimi-K3: [3072, 1792] packed bytes.
    experts = group("layers.{L}.experts.{E}.w1.weight_packed", (3072, 1792), "U8", [(1, 0), (1, 895)])
    table = TensorTable(files=("a",), groups=(experts, group("head", (10, 3), "BF16", [(-1, -1)])))
    first, last = "layers.1.experts.0.w1.weight_packed", "layers.1.experts.895.w1.weight_packed"
    assert list(table.names()) == [first, last, "head"]
    assert table.count == 3
    assert table.total_bytes == 2 * 3072 * 1792 + 60


def test_four_bit_elements_share_bytes() -> None:
    assert group("x", (3,), "F4", [(-1, -1)]).tensor_bytes == 2
