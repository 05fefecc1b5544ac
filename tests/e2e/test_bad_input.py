"""Every wrong request ends with two lines and exit code 2, and leaves nothing half-written."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest

CLUSTER = '[cluster]\ndevice = "h200"\ndevices_per_node = 8\n'


def dayzero(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dayzero.cli", *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120)


def refused(done: subprocess.CompletedProcess[str], *words: str) -> None:
    """Exit code 2, two lines at the end, no traceback, nothing on standard output."""
    assert done.returncode == 2, done.stdout + done.stderr
    error, hint = done.stderr.splitlines()[-2:]
    assert error.startswith("error: ") and hint.startswith("hint: ") and len(hint) > len("hint: ")
    assert "Traceback" not in done.stderr and not done.stdout
    for word in words:
        assert word in error + hint, (word, error, hint)


def no_half_files(folder: Path) -> None:
    left = [path for path in folder.rglob("*") if path.name.endswith(".part")]
    assert not left
    for path in folder.rglob("runs/**/*.json"):
        json.loads(path.read_text())


@pytest.fixture
def release(tmp_path: Path, root: Path) -> Path:
    """SmolLM2-135M from its card: real headers, two shards' worth of holes as data."""
    done = dayzero("card", root / "examples/cards/smollm2-135m.toml", tmp_path / "release", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    return tmp_path / "release"


@pytest.fixture
def target(tmp_path: Path) -> Path:
    path = tmp_path / "target.toml"
    path.write_text(CLUSTER)
    return path


def shard(release: Path) -> Path:
    return sorted(release.glob("*.safetensors"))[0]


def test_the_release_is_fine_before_it_is_broken(release: Path, target: Path, tmp_path: Path) -> None:
    done = dayzero("preflight", release, "--target", target, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr + done.stdout
    assert json.loads(done.stdout)["facts"]["params_total"] == 134_515_008


@pytest.mark.parametrize("verb", ["adapt", "preflight", "plan"])
def test_not_a_release_folder(verb: str, target: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    refused(dayzero(verb, tmp_path / "empty", "--target", target, cwd=tmp_path), "config.json")
    refused(dayzero(verb, tmp_path / "nowhere", "--target", target, cwd=tmp_path), "nowhere")
    no_half_files(tmp_path)


@pytest.mark.parametrize("text", ["{", "", "[1, 2]", "null", "\x00\x01", '{"num_hidden_layers": "many"}',
                                  '{"model_type": "x"}'])
def test_config_is_not_usable(text: str, release: Path, target: Path, tmp_path: Path) -> None:
    (release / "config.json").write_text(text)
    refused(dayzero("adapt", release, "--target", target, cwd=tmp_path), "config.json")
    no_half_files(tmp_path)


def test_a_shard_is_cut_short(release: Path, target: Path, tmp_path: Path) -> None:
    with open(shard(release), "r+b") as file:
        file.truncate(shard(release).stat().st_size - 1000)
    refused(dayzero("adapt", release, "--target", target, cwd=tmp_path), "file-truncated", shard(release).name)
    done = dayzero("preflight", release, "--target", target, "--json", cwd=tmp_path)
    assert done.returncode == 1
    found = [finding for finding in json.loads(done.stdout)["findings"] if finding["rule"] == "file-truncated"]
    assert found[0]["facts"]["expected_bytes"] - found[0]["facts"]["actual_bytes"] == 1000
    no_half_files(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("length", [0, 1, 2**20, 2**40, 2**63, 2**64 - 1])
def test_header_length_is_wrong(length: int, release: Path, target: Path, tmp_path: Path) -> None:
    with open(shard(release), "r+b") as file:
        file.write(struct.pack("<Q", length))
        if length == 2**20:
            file.truncate(5000)
    refused(dayzero("adapt", release, "--target", target, cwd=tmp_path), shard(release).name)
    no_half_files(tmp_path)


@pytest.mark.parametrize("outside", ["../x.safetensors", "/etc/passwd", "a/../../x.safetensors"])
def test_index_leaves_the_folder(outside: str, release: Path, target: Path, tmp_path: Path) -> None:
    path = release / "model.safetensors.index.json"
    index = json.loads(path.read_text()) if path.exists() else {"metadata": {}, "weight_map": {}}
    index["weight_map"]["model.norm.weight"] = outside
    path.write_text(json.dumps(index))
    refused(dayzero("adapt", release, "--target", target, cwd=tmp_path), outside)
    no_half_files(tmp_path)


def test_pickled_weights_only(release: Path, target: Path, tmp_path: Path) -> None:
    for path in [*release.glob("*.safetensors"), *release.glob("*.index.json")]:
        path.unlink()
    (release / "pytorch_model.bin").write_bytes(b"\x80\x02")
    refused(dayzero("adapt", release, "--target", target, cwd=tmp_path), "pytorch_model.bin", "writes safetensors")


@pytest.mark.parametrize(("text", "words"), [
    (CLUSTER + "devices_per_nod = 8\n", ("devices_per_nod", 'did you mean "devices_per_node"')),
    (CLUSTER + '[engin]\nname = "vllm"\n', ("engin", 'did you mean "engine"')),
    (CLUSTER + "[layout]\ntp = 16\n", ("16", "8")),
    (CLUSTER + "[layout]\ntp = 0\n", ("tp=0",)),
    (CLUSTER + '[layout]\ntp = "two"\n', ("tp",)),
    (CLUSTER.replace("h200", "mi300"), ("mi300", 'did you mean "mi300x"')),
    (CLUSTER.replace("8", "-8"), ("devices_per_node",)),
    (CLUSTER.replace("8", "99999999999999999999"), ("devices_per_node",)),
    (CLUSTER + "memory_utilization = 1.5\n", ("memory_utilization",)),
    ("[layout]\ntp = 1\n", ("cluster",)),
    ("cluster = [", ("target.toml",)),
    ("", ("cluster",)),
])
def test_target_is_wrong(text: str, words: tuple[str, ...], release: Path, target: Path, tmp_path: Path) -> None:
    target.write_text(text)
    refused(dayzero("adapt", release, "--target", target, cwd=tmp_path), *words)
    no_half_files(tmp_path)


def test_target_is_not_there(release: Path, tmp_path: Path) -> None:
    refused(dayzero("plan", release, "--target", tmp_path / "none.toml", cwd=tmp_path), "none.toml")


@pytest.mark.parametrize("arguments", [
    ("adapt", "x"), ("adapt",), ("adap", "x"), ("preflight", "x", "--target"), ("run", "x", "--layout", "tp=x"),
    ("adapt", "x", "--target", "t", "--from", "traec"), ("import-gguf", "nowhere.gguf", "out"),
    ("card", "nowhere.toml", "out"), ("manifest", "nowhere")])
def test_wrong_arguments(arguments: tuple[str, ...], tmp_path: Path) -> None:
    refused(dayzero(*arguments, cwd=tmp_path))


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs unshare to mount a small file system")
def test_disk_full(release: Path, target: Path, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    script = (f"mount -t tmpfs -o size=16k tmpfs {small} && {sys.executable} -m dayzero.cli adapt {release} "
              f"--target {target} --runs {small}/runs; code=$?; find {small} -type f; exit $code")
    done = subprocess.run(["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script], cwd=tmp_path,
                          capture_output=True, text=True, timeout=120)
    if "mount:" in done.stderr or "unshare:" in done.stderr:
        pytest.skip(f"no mount here: {done.stderr.strip()}")
    assert done.returncode == 2, done.stderr
    error, hint = done.stderr.splitlines()[-2:]
    assert "No space left" in error and hint.startswith("hint: ")
    assert ".part" not in done.stdout
