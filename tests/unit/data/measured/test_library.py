"""Tables are found without the package's code, mapped by data, read once, and the nearest of several answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dayzero.data.measured import Library, Source, library, package, reading, source
from dayzero.data.measured.mapping import mapping
from dayzero.data.measured.own import own_table
from dayzero.errors import NotPossible, TargetError

Columns = dict[str, list[Any]]
MINE = """
operator = "linear"
device = "{device}"
source = "measured here"
keys = {{ scheme = "bf16" }}
grid = ["tokens"]
rising = ["tokens"]
shape = ["outer", "inner"]
[rows]
tokens = [1, 2, 4]
outer = [64, 64, 64]
inner = [32, 32, 32]
seconds = [1e-6, 2e-6, 4e-6]
"""


def gemm(times: float, dtype: str = "bfloat16", least: float = 0.004) -> Columns:
    """Columns of a table of products as the package has them; milliseconds."""
    points = [(m, n, k) for m in (1, 16, 256) for n in (64, 1024) for k in (64, 1024)]
    return {"gemm_dtype": [dtype] * len(points), "m": [m for m, _, _ in points], "n": [n for _, n, _ in points],
            "k": [k for _, _, k in points], "latency": [max(least, times * m * n * k * 1e-9) for m, n, k in points]}


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[Path, Columns]:
    """File -> its columns: an empty folder of tables, whose files are read from here."""
    content: dict[Path, Columns] = {}
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(reading, "columns", lambda path, names: {
        name: np.array(content[path][name]) for name in names})
    return content


def add(tree: dict[Path, Columns], folder: Path, where: str, columns: Columns) -> None:
    path = folder / where
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"")
    tree[path] = columns


def query(folder: Path, engine: str, device: str = "h200", scheme: str = "bf16", tokens: float = 16) -> tuple[
        float, str, float]:
    """(milliseconds, table, doublings away) of one product."""
    answer = Library(source(folder)).read("linear", device, engine, {"scheme": scheme}, {
        "tokens": np.array([tokens]), "outer": np.array([1024.0]), "inner": np.array([1024.0])})
    name = answer.names[answer.table[0]] if answer.table[0] >= 0 else ""
    return float(answer.found.seconds[0] * 1e3), name, float(answer.distance[0])


def test_the_engines_newest_table_comes_first(tree: dict[Path, Columns], tmp_path: Path) -> None:
    folder = tmp_path / "tables"
    add(tree, folder, "h200_sxm/gemm/vllm/0.9.0/gemm_perf.parquet", gemm(3.0))
    add(tree, folder, "h200_sxm/gemm/vllm/0.10.1/gemm_perf.parquet", gemm(2.0))
    add(tree, folder, "h200_sxm/gemm/sglang/0.5.14/gemm_perf.parquet", gemm(1.0))
    assert query(folder, "vllm") == (pytest.approx(2.0 * 16 * 1024**2 * 1e-9), "vllm 0.10.1, h200_sxm", 0.0)
    assert query(folder, "sglang")[1] == "sglang 0.5.14, h200_sxm"
    assert query(folder, "another")[1] == "vllm 0.10.1, h200_sxm"  # a device's kernels, whoever ran them
    assert query(folder, "another")[2] > 1


def test_nothing_is_known_of_another_device(tree: dict[Path, Columns], tmp_path: Path) -> None:
    folder = tmp_path / "tables"
    add(tree, folder, "h200_sxm/gemm/vllm/0.9.0/gemm_perf.parquet", gemm(3.0))
    assert np.isnan(query(folder, "vllm", device="mi355x")[0])
    one = Library(source(folder))
    assert one.knows("h200") and not one.knows("mi355x") and not one.knows("h100")


def test_another_scheme_stands_in_and_counts_as_away(tree: dict[Path, Columns], tmp_path: Path) -> None:
    folder = tmp_path / "tables"
    add(tree, folder, "h200_sxm/gemm/vllm/0.9.0/gemm_perf.parquet", gemm(1.0, "fp8"))
    exact, standing = query(folder, "vllm", scheme="fp8"), query(folder, "vllm", scheme="fp8_block")
    assert standing[0] == exact[0] and standing[2] == exact[2] + 1
    assert np.isnan(query(folder, "vllm", scheme="int4")[0])


def test_a_table_of_launches_comes_last(tree: dict[Path, Columns], tmp_path: Path) -> None:
    folder = tmp_path / "tables"  # no time below 150 us: started one by one from the host
    add(tree, folder, "b200_sxm/gemm/vllm/0.24.0/gemm_perf.parquet", gemm(1.0, least=0.15))
    add(tree, folder, "b200_sxm/gemm/sglang/0.5.14/gemm_perf.parquet", gemm(1.0, least=0.004))
    assert query(folder, "vllm", device="b200", tokens=1) == (
        pytest.approx(0.004), "sglang 0.5.14, b200_sxm", 1.5)


def test_what_is_far_is_not_known(tree: dict[Path, Columns], tmp_path: Path) -> None:
    folder = tmp_path / "tables"
    add(tree, folder, "h200_sxm/gemm/vllm/0.9.0/gemm_perf.parquet", gemm(1.0))
    assert np.isnan(query(folder, "vllm", tokens=256 * 2**7)[0])


def test_files_that_no_row_maps_are_told(tree: dict[Path, Columns], tmp_path: Path) -> None:
    folder = tmp_path / "tables"
    add(tree, folder, "h200_sxm/gemm/vllm/0.9.0/gemm_perf.parquet", gemm(1.0))
    add(tree, folder, "h200_sxm/new/vllm/0.9.0/tomorrow_perf.parquet", {})
    assert source(folder).unmapped == ("tomorrow_perf.parquet",)


def test_a_table_is_read_once_and_kept(tree: dict[Path, Columns], tmp_path: Path) -> None:
    folder = tmp_path / "tables"
    add(tree, folder, "h200_sxm/gemm/vllm/0.9.0/gemm_perf.parquet", gemm(1.0))
    first = query(folder, "vllm")
    tree.clear()  # reading it again would fail
    assert query(folder, "vllm") == first
    kept, = (tmp_path / "cache" / "dayzero" / "measured").glob("*.npz")
    kept.write_bytes(b"cut short")
    with pytest.raises(KeyError):
        query(folder, "vllm")


def test_parts_add_up_and_points_without_all_parts_are_left_out() -> None:
    row = mapping().rows("kda_perf.parquet")[0]
    read: Columns = {
        "phase": ["generation"] * 5 + ["verify"], "latency": [0.010, 0.020, 0.011, 0.030, 0.5, 9.0],
        "kernel_source": ["causal_conv1d_update", "fused_recurrent_kda_packed_decode", "causal_conv1d_update",
                          "fused_recurrent_kda_packed_decode", "causal_conv1d_update", "causal_conv1d_update"],
        "batch_size": [1, 1, 2, 2, 4, 1], "seq_len": [1] * 6, "num_k_heads": [8] * 6, "head_k_dim": [128] * 6,
        "num_v_heads": [8] * 6, "head_v_dim": [128] * 6, "d_model": [7168] * 6}
    made = reading.parsed({name: np.array(values) for name, values in read.items()}, row)
    (keys, one), = made.items()
    assert keys == (("phase", "decode"),)
    assert list(one.points[0]) == [1.0, 2.0]  # 4 sequences have the convolution alone
    assert np.exp(one.logs).ravel() == pytest.approx([30e-6, 41e-6])


def test_an_axis_without_a_limit() -> None:
    row = mapping().rows("generation_attention_perf.parquet")[0]
    read: Columns = {"kv_cache_dtype": ["bfloat16"] * 2, "latency": [0.01, 0.02], "num_heads": [8, 8],
                     "num_key_value_heads": [1, 1], "head_dim": [64, 64], "window_size": [0, 128],
                     "batch_size": [1, 1], "step": [1024, 1024]}
    one, = reading.parsed({name: np.array(values) for name, values in read.items()}, row).values()
    found = one.read({"heads": np.array([8.0, 8.0]), "kv_heads": np.array([1.0, 1.0]),
                      "head_dim": np.array([64.0, 64.0]), "window": np.array([200.0, 2.0**40]),
                      "sequences": np.array([1.0, 1.0]), "context": np.array([1024.0, 1024.0])})
    assert found.seconds == pytest.approx([20e-6, 10e-6])


def test_every_row_of_the_mapping_names_what_it_says() -> None:
    for row in mapping().tables:
        assert set(row.rising) <= set(row.grid), row.file
        assert set(row.factor) <= {*row.grid, *row.shape} and set(row.unlimited) <= set(row.shape), row.file
        assert set(row.values) <= set(row.keys), row.file
    assert set(mapping().calls) == {"prefill", "decode"}


def test_without_the_extra_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(package.VARIABLE, raising=False)
    monkeypatch.setattr(package, "distribution", _absent)
    with pytest.raises(NotPossible, match="not installed") as raised:
        source()
    assert "dayzero[measured]" in raised.value.hint


def _absent(name: str) -> None:
    raise package.PackageNotFoundError(name)


def test_without_pyarrow_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(reading, "import_module", _no_module)
    with pytest.raises(NotPossible, match="pyarrow"):
        reading.columns(tmp_path / "x.parquet", ["m"])


def _no_module(name: str) -> None:
    raise ImportError(name)


def test_a_folder_without_tables_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="no measured tables"):
        source(tmp_path)


def test_the_folder_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / mapping().folder / "h200_sxm/gemm/vllm/0.9.0/gemm_perf.parquet"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"")
    monkeypatch.setenv(package.VARIABLE, str(tmp_path))
    assert [file.path for file in source().files] == [path]


def test_a_users_own_table_comes_first(tree: dict[Path, Columns], tmp_path: Path) -> None:
    folder, mine = tmp_path / "tables", tmp_path / "mine.toml"
    add(tree, folder, "h200_sxm/gemm/vllm/0.9.0/gemm_perf.parquet", gemm(1.0))
    mine.write_text(MINE.format(device="h200"))
    both = library(folder, (mine,))
    answer = both.read("linear", "h200", "vllm", {"scheme": "bf16"}, {
        "tokens": np.array([2.0, 256.0]), "outer": np.array([64.0, 1024.0]), "inner": np.array([32.0, 1024.0])})
    assert [answer.names[i] for i in answer.table] == ["measured here", "vllm 0.9.0, h200_sxm"]
    assert answer.found.seconds[0] == pytest.approx(2e-6)
    assert both.name.endswith("measured here")


def test_own_tables_alone_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text(MINE.format(device="chip"))
    monkeypatch.delenv(package.VARIABLE, raising=False)
    monkeypatch.setattr(package, "distribution", _absent)
    assert library(None, (mine,)).knows("chip")


@pytest.mark.parametrize(("change", "told"), [
    (("seconds = [1e-6, 2e-6, 4e-6]", "seconds = [1e-6, 2e-6]"), "one length"),
    (('rising = ["tokens"]', 'rising = ["inner"]'), "rising"),
    (('device = "chip"', 'divice = "chip"'), "divice"),
    (("seconds = [1e-6, 2e-6, 4e-6]", "seconds = [0, 0, 0]"), "no row"),
    (("[rows]", 'rows = "../x.parquet"\n[other]'), "other|beside"),
])
def test_what_is_wrong_with_an_own_table_is_said(change: tuple[str, str], told: str, tmp_path: Path) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text(MINE.format(device="chip").replace(*change))
    with pytest.raises(TargetError, match=told):
        own_table(mine)


def test_real_parquet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "h100_sxm/gemm/vllm/0.9.0/gemm_perf.parquet"
    path.parent.mkdir(parents=True)
    parquet.write_table(pyarrow.table({**gemm(1.0), "framework": ["vLLM"] * 12}), path)
    assert query(tmp_path, "vllm", device="h100")[0] == pytest.approx(16 * 1024**2 * 1e-9)
    parquet.write_table(pyarrow.table({"m": [1]}), path)
    with pytest.raises(TargetError, match="cannot be read as a table of gemm_dtype"):
        query(tmp_path, "vllm", device="h100")


def test_the_installed_package_has_what_the_mapping_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyarrow")
    monkeypatch.delenv(package.VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    try:
        found: Source = source()
    except NotPossible:
        pytest.skip("the extra `measured` is not installed")
    assert {row.file for row in mapping().tables} <= {file.path.name for file in found.files}
    answer = Library(found).read("linear", "h200", "vllm", {"scheme": "bf16"}, {
        "tokens": np.array([4096.0]), "outer": np.array([4096.0]), "inner": np.array([4096.0])})
    # 2 * 4096^3 operations at 989e12: at least 139 us
    assert 139e-6 < answer.found.seconds[0] < 600e-6
