"""Ranks that die, hang or are interrupted: the launch says so, soon, and leaves no process behind."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from tests.support import tiny

from dayzero.errors import NotPossible, StageError, StoreError
from dayzero.progress import Progress
from dayzero.runtime.assignment import Assignment, Pass
from dayzero.runtime.launch import launch
from dayzero.schema import Layout

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.dense(tmp_path_factory.mktemp("launch") / "model")


def _assignment(root: Path, *, tokens: int = 200) -> Assignment:
    """Many repetitions: long enough to be disturbed."""
    return Assignment(root=str(root), layout=Layout(pp=2), passes=(Pass(dtype="bf16", generate=1000),),
                      prompts=((3, 4, 5), (6, 7, 8)), max_new_tokens=tokens, batch=2, seed=0, gradient_rows=2)


class _When(Progress):
    """Calls something with the ranks' process numbers once, when both are generating."""

    def __init__(self, folder: Path, action: Callable[[list[int]], None]) -> None:
        self.work = folder.with_name(f".{folder.name}.part")
        self.action, self.pids = action, list[int]()

    def update(self, text: str, done: float = 0.0, total: float = 0.0) -> None:
        phases = [self.work / f"rank-{rank}" / "phase" for rank in (0, 1)]
        if not self.pids and all(path.exists() and "generating" in path.read_text() for path in phases):
            self.pids = _pids(self.work)
            self.action(self.pids)


def _pids(folder: Path) -> list[int]:
    return [int((folder / f"rank-{rank}" / "pid").read_text()) for rank in (0, 1)]


def _all_gone(pids: list[int]) -> bool:
    """A killed process may take a moment, and may stay as a zombie if nobody waits for it."""
    for _ in range(100):
        states = [Path(f"/proc/{pid}/stat") for pid in pids]
        alive = [path for path in states if path.exists() and path.read_text().rpartition(")")[2].split()[0] != "Z"]
        if not alive:
            return True
        time.sleep(0.05)
    return False


def test_a_damaged_file_is_named(model: Path, tmp_path: Path) -> None:
    root = tmp_path / "model"
    root.mkdir()
    for path in model.iterdir():
        (root / path.name).write_bytes(path.read_bytes())
    shard = sorted(root.glob("*.safetensors"))[0]
    shard.write_bytes(shard.read_bytes()[:100])
    with pytest.raises(StageError) as caught:
        launch(_assignment(root), tmp_path / "launch")
    assert shard.name in caught.value.message and caught.value.hint
    assert _all_gone(_pids(tmp_path / "launch-failed"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["launch-failed", "model"]


def test_a_rank_that_raises(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import os, pathlib\n"
        "write = pathlib.Path.write_text\n"
        "def odd(path, text, *rest, **more):\n"
        "    if os.environ.get('RANK') == '1' and text.startswith('generating'):\n"
        "        raise ZeroDivisionError('odd')\n"
        "    return write(path, text, *rest, **more)\n"
        "pathlib.Path.write_text = odd\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "runs").mkdir()
    with pytest.raises(StageError, match="rank 1 of 2 ended with exit code 1 while loading bf16") as caught:
        launch(_assignment(model), tmp_path / "runs" / "launch")
    assert "ZeroDivisionError: odd" in caught.value.log
    failed = tmp_path / "runs" / "launch-failed"
    assert _all_gone(_pids(failed)) and str(failed) in caught.value.hint


def test_a_rank_that_is_killed(model: Path, tmp_path: Path) -> None:
    folder, start = tmp_path / "launch", time.monotonic()
    when = _When(folder, lambda pids: os.kill(pids[1], signal.SIGKILL))
    with pytest.raises(StageError) as caught:
        launch(_assignment(model), folder, progress=when)
    assert caught.value.message.startswith("rank 1 of 2 ended with SIGKILL while generating")
    assert caught.value.exit_code == 1
    assert _all_gone(when.pids) and time.monotonic() - start < 120


def test_ranks_that_hang(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "launch"
    stop = _When(folder, lambda pids: os.kill(pids[1], signal.SIGSTOP))
    with pytest.raises(StageError, match=r"rank \d of 2 is not done after 20 s"):
        launch(_assignment(model), folder, limit_s=20.0, progress=stop)
    assert _all_gone(stop.pids)


def test_an_interrupt_takes_the_ranks_down(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "launch"
    folder.mkdir()
    (folder / "before").touch()

    def interrupt(pids: list[int]) -> None:
        raise KeyboardInterrupt

    when = _When(folder, interrupt)
    with pytest.raises(KeyboardInterrupt):
        launch(_assignment(model), folder, progress=when)
    assert _all_gone(when.pids)
    assert list(tmp_path.iterdir()) == [folder] and (folder / "before").exists()  # what an earlier launch left


def test_a_tensor_that_one_stage_lacks_ends_the_launch(model: Path, tmp_path: Path) -> None:
    """Only the last stage has the last norm; the first must not wait for it."""
    root = tmp_path / "model"
    root.mkdir()
    for path in model.iterdir():
        (root / path.name).write_bytes(path.read_bytes().replace(b"model.norm.weight", b"model.nrm_.weight"))
    start = time.monotonic()
    with pytest.raises(StageError, match=r"the files do not hold model\.norm\.weight") as caught:
        launch(_assignment(root), tmp_path / "launch")
    assert "model.nrm_.weight" in caught.value.hint and time.monotonic() - start < 60


def test_a_rank_without_space_is_told_as_that(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second rank finds the disk full when it wants to say what it does."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, errno, pathlib\n"
        "write = pathlib.Path.write_text\n"
        "def full(path, text, *rest, **more):\n"
        "    if os.environ.get('RANK') == '1' and text.startswith('loading'):\n"
        "        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))\n"
        "    return write(path, text, *rest, **more)\n"
        "pathlib.Path.write_text = full\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "runs").mkdir()
    with pytest.raises(StoreError, match="is full: the ranks of pp=2 cannot write"):
        launch(_assignment(model), tmp_path / "runs" / "launch")
    assert not list((tmp_path / "runs").iterdir())


def test_a_launch_leaves_nothing_in_the_temporary_folder(model: Path, tmp_path: Path,
                                                         monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither one that succeeds nor one that is interrupted."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    brief = msgspec.structs.replace(_assignment(model, tokens=2), passes=(Pass(dtype="bf16", generate=1),))
    launch(brief, tmp_path / "launch")

    def interrupt(pids: list[int]) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        launch(_assignment(model), tmp_path / "launch", progress=_When(tmp_path / "launch", interrupt))
    assert not [path for path in (tmp_path / "tmp").iterdir() if not path.name.startswith("torchinductor")]


def test_what_cannot_be_run_says_why(model: Path, tmp_path: Path) -> None:
    root = tmp_path / "model"
    root.mkdir()
    (root / "config.json").write_text('{"model_type": "of_tomorrow", "architectures": ["TomorrowForCausalLM"]}')
    with pytest.raises(NotPossible, match=r"transformers cannot build this model: .*of_tomorrow"):
        launch(_assignment(root), tmp_path / "launch")
