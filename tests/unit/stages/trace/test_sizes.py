"""Workloads and models that are refused before, or instead of, running for ever or failing without a reason."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from tests.support.graphs import layered_graph

from dayzero.errors import ReleaseError, UsageError
from dayzero.schema import to_json
from dayzero.stages.read.card import read_card
from dayzero.stages.trace import graph_of, trace
from dayzero.stages.trace.sizes import MOST_LAYERS, told, too_deep


@pytest.mark.parametrize("sizes", [{"batch": 10**6, "tokens": 10**9}, {"batch": 10**12, "tokens": 10**5},
                                   {"tokens": 10**10}, {"context": 10**12, "batch": 10**5}])
def test_workloads_that_no_number_stands_for(make, configs, root, sizes) -> None:
    unknown = read_card(root / "examples/cards/kimi-k3.toml")  # its operations follow from definitions
    for made in (make(configs["dense"]), unknown):
        with pytest.raises(UsageError, match="more than can be counted") as caught:
            graph_of(made, **sizes)
        assert "--batch" in caught.value.hint and caught.value.exit_code == 2


def test_large_workloads_are_traced(make, configs) -> None:
    graph = trace(make(configs["dense"]), tokens=10**7, context=10**7)
    assert set(graph.phases) == {"prefill", "decode"} and graph.phases["prefill"].flops > 10**16


def test_numbers_that_are_told() -> None:
    graph = layered_graph()
    assert told(graph) is graph
    phase = msgspec.structs.replace(graph.phases["decode"], bytes=2**63)
    with pytest.raises(UsageError):
        told(msgspec.structs.replace(graph, phases={"decode": phase}))


@pytest.mark.parametrize("part", [{"num_hidden_layers": 100_000}, {"vision_config": {"depth": 10**9}},
                                  {"n_layer": MOST_LAYERS + 1}])
def test_absurd_numbers_of_layers(make, configs, part) -> None:
    made = make(configs["dense"])
    too_deep(made)
    made = msgspec.structs.replace(made, config={**made.config, **part})
    with pytest.raises(ReleaseError, match="at most 5,000 layers") as caught:
        trace(made)
    assert "correct" in caught.value.hint


@pytest.mark.slow
def test_no_folder_is_left_behind(make, configs, tmp_path: Path) -> None:
    fails = {**configs["dense"], "num_key_value_heads": 4}
    (tmp_path / "release").write_bytes(to_json(make(configs["dense"])))
    (tmp_path / "fails").write_bytes(to_json(make(fails)))
    (tmp_path / "temporary").mkdir()
    code = ("import sys; from pathlib import Path; from dayzero.schema import Release, from_json;"
            "from dayzero.stages.trace import trace; trace(from_json(Path(sys.argv[1]).read_bytes(), Release))")
    environment = {**os.environ, "TMPDIR": str(tmp_path / "temporary")}
    environment.pop("TORCHINDUCTOR_CACHE_DIR", None)
    for name, status in (("release", 0), ("fails", 1)):
        done = subprocess.run([sys.executable, "-c", code, str(tmp_path / name)], env=environment, capture_output=True)
        assert done.returncode == status and not list((tmp_path / "temporary").iterdir())
