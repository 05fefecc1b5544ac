"""The launch scripts for a handful of layouts, word for word. With DAYZERO_UPDATE_GOLDEN=1 they are written anew."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.support.results import adapted, large_candidate, large_release, large_target

from dayzero.schema import Layout
from dayzero.targets.vllm import VLLM, profile

LAYOUTS = {
    "one-node-tp8": (1, Layout(tp=8)),
    "one-node-dp8-ep8": (1, Layout(dp=8, ep=8)),
    "one-node-tp8-ep8-cp4": (1, Layout(tp=8, ep=8, cp=4)),
    "two-nodes-tp8-pp2": (2, Layout(tp=8, pp=2)),
    "two-nodes-tp8-dp2-ep16": (2, Layout(tp=8, dp=2, ep=16)),
    "four-nodes-tp16-dp2-ep32": (4, Layout(tp=16, dp=2, ep=32)),
}


def _launches():
    for name, (nodes, layout) in LAYOUTS.items():
        target = large_target(nodes)
        yield name, VLLM.launch(large_release(), large_candidate(layout, target, fits=True), target)
    small = adapted()
    for candidate in small.plan.candidates:
        name = f"local-{candidate.layout.text.replace(' ', '-').replace('=', '')}"
        yield name, VLLM.launch(small.release, candidate, small.target)


LAUNCHES = dict(_launches())


@pytest.mark.parametrize("name", LAUNCHES)
def test_script_is_as_it_was(name: str, root: Path) -> None:
    golden, script = root / "tests" / "golden" / "commands" / f"{name}.sh", LAUNCHES[name].files["launch-vllm.sh"]
    if os.environ.get("DAYZERO_UPDATE_GOLDEN"):
        golden.write_text(script)
    assert script == golden.read_text()


@pytest.mark.parametrize("name", LAUNCHES)
def test_every_option_exists(name: str) -> None:
    allowed = set(profile().flags["allowed"])
    used = {word for command in LAUNCHES[name].commands.values() for word in shlex.split(command)
            if word.startswith("--")}
    assert used and used <= allowed


@pytest.mark.parametrize("name", LAUNCHES)
def test_script_passes_what_the_commands_say(name: str, tmp_path: Path) -> None:
    """Run the script with a `vllm` that prints its words, as each node would."""
    fake = tmp_path / "vllm"
    fake.write_text('#!/bin/sh\nprintf "%s\\n" "$VLLM_PP_LAYER_PARTITION" vllm "$@"\n')
    fake.chmod(0o755)
    script = tmp_path / "launch.sh"
    script.write_text(LAUNCHES[name].files["launch-vllm.sh"])
    several = len(LAUNCHES[name].commands) > 1
    for rank, command in enumerate(LAUNCHES[name].commands.values()):
        arguments = [str(rank)] if several else []
        environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "HEAD_NODE_ADDRESS": "HEAD_NODE_ADDRESS"}
        words = subprocess.run([shutil.which("bash"), script, *arguments, "--seed", "7"], env=environment, text=True,
                               capture_output=True, check=True).stdout.split("\n")[:-1]
        expected = shlex.split(command)
        partition = expected.pop(0).partition("=")[2] if "=" in expected[0] else ""
        assert words[0] == partition
        assert sorted(words[1:]) == sorted([*expected, "--seed", "7"])
        assert words[-2:] == ["--seed", "7"], "options of the call come last, so that they win"


def test_a_node_without_rank_or_address_is_told_how_to_call(tmp_path: Path) -> None:
    script = tmp_path / "launch.sh"
    script.write_text(LAUNCHES["two-nodes-tp8-pp2"].files["launch-vllm.sh"])
    for environment, arguments in (({}, ["0"]), ({"HEAD_NODE_ADDRESS": "10.0.0.1"}, [])):
        done = subprocess.run([shutil.which("bash"), script, *arguments], text=True, capture_output=True,
                              env={"PATH": "/usr/bin:/bin", **environment})
        assert done.returncode != 0
        assert "usage: HEAD_NODE_ADDRESS=" in done.stderr
