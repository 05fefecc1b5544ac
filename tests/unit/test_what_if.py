"""A target with some of its values changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from dayzero.data.causes import FACTORS
from dayzero.errors import DayzeroError, TargetError
from dayzero.resolve import resolve_target
from dayzero.schema import Layout
from dayzero.what_if import what_if

PLAIN = """
[cluster]
device = "h200"
devices_per_node = 8
nodes = 2
[cluster.network]
bandwidth = 50e9
latency = 10e-6
[workload]
input_tokens = 100
"""


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    path = tmp_path / "plain.toml"
    path.write_text(PLAIN)
    return path


def test_only_what_is_changed_differs(plain: Path, tmp_path: Path) -> None:
    made = what_if(plain, {"cluster.nodes": 4, "workload.concurrency": 64, "limits.tpot_s": 0.015}, tmp_path / "runs")
    assert made == tmp_path / "runs" / "plain+nodes=4+concurrency=64+tpot_s=0.015.toml"
    before, after = resolve_target(plain), resolve_target(made)
    assert (after.cluster.nodes, after.workload.concurrency, after.limits.tpot_s) == (4, 64, 0.015)
    assert after.workload.input_tokens == 100 and after.cluster.network == before.cluster.network
    assert plain.read_text() == PLAIN


def test_large_and_small_numbers_have_names_of_their_own(plain: Path, tmp_path: Path) -> None:
    names = {what_if(plain, {"workload.arrival_rate": rate}, tmp_path).name for rate in (1e9, 1e-9, 0.5, 50.0)}
    assert "plain+arrival_rate=1e09.toml" in names and len(names) == 4


def test_nothing_changed_is_the_file_itself(plain: Path, tmp_path: Path) -> None:
    assert what_if(plain, {}, tmp_path / "runs") == plain and not (tmp_path / "runs").exists()


def test_without_a_file(tmp_path: Path) -> None:
    made = what_if(None, {"cluster.device": "h200", "cluster.devices_per_node": 8}, tmp_path)
    assert made.name == "device=h200+devices_per_node=8.toml"
    assert resolve_target(made).cluster.world_size == 8


def test_a_layout(plain: Path, tmp_path: Path) -> None:
    made = what_if(plain, {"layout": [{"tp": 8, "pp": 2}, {"tp": 16}]}, tmp_path)
    assert resolve_target(made).layouts == (Layout(tp=8, pp=2), Layout(tp=16))
    assert made.stem == "plain+layout=tp8pp2-tp16"


def test_an_engine_of_its_own_is_still_found(plain: Path, tmp_path: Path) -> None:
    own = 'name = "mine"\n[facts]\nblock_padding = true\n[sources]\nblock_padding = "x"\n'
    (tmp_path / "mine.toml").write_text(own)
    plain.write_text(PLAIN + '[engine]\nname = "./mine.toml"\n')
    before = resolve_target(plain).engine
    assert resolve_target(what_if(plain, {"cluster.nodes": 4}, tmp_path / "runs")).engine == before


def test_own_tables_are_still_found(tmp_path: Path) -> None:
    path = tmp_path / "mine" / "plain.toml"
    path.parent.mkdir()
    path.write_text(PLAIN + '[operators]\ntables = ["products.toml"]\n')
    made = resolve_target(what_if(path, {"operators.times": "measured"}, tmp_path / "runs"))
    assert made.operators.times == "measured"
    assert made.operators.tables == (str(tmp_path / "mine" / "products.toml"),)


def test_a_calibration_is_part_of_the_target(plain: Path, tmp_path: Path) -> None:
    content = {"source": "mine.csv", "rows": 20, "factors": dict.fromkeys(list(FACTORS)[:1], 1.5)}
    made = what_if(plain, {"calibration": content}, tmp_path)
    found = resolve_target(made).calibration
    assert found is not None and (found.source, found.factors) == ("mine.csv", content["factors"])
    assert made.stem.startswith("plain+calibration=") and len(made.stem) == len("plain+calibration=") + 8
    for factors, error in (({"nothing": 1.5}, "unknown cause 'nothing'"), ({next(iter(FACTORS)): 0.0}, "sensible")):
        with pytest.raises(TargetError, match=error):
            what_if(plain, {"calibration": content | {"factors": factors}}, tmp_path)


@pytest.mark.parametrize("changes", [{"cluster.device": "h2000"}, {"cluster.nodes": 0}, {"layout": [{"tp": 3}]},
                                     {"cluster.devices_per_node": 2**40}, {"cluster.device.nodes": 3}])
def test_what_is_wrong_leaves_nothing(plain: Path, tmp_path: Path, changes: dict[str, object]) -> None:
    with pytest.raises(DayzeroError):
        what_if(plain, changes, tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_long_names_end_in_a_digest(plain: Path, tmp_path: Path) -> None:
    layouts = [{"tp": 1, "pp": 1, "dp": 2**power} for power in range(5)]
    one, other = ({"layout": layouts, "workload.concurrency": 10**9 + last, "workload.input_tokens": 10**9,
                   "workload.output_tokens": 10**9} for last in (0, 1))
    names = [what_if(plain, changes, tmp_path).name for changes in (one, other)]
    assert all(len(name) <= 125 for name in names) and names[0] != names[1]
