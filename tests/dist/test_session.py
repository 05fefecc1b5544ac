"""Releases that are loaded and asked: the same tokens and logits as the library's, in any layout, on any device, from
any format, with some layers only, by a plan, and whatever happens to the ranks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.support import guest, tiny

import dayzero
from dayzero.backends import backends
from dayzero.errors import ReleaseError, StageError, UsageError
from dayzero.schema import Layout, RunRecord, from_json
from dayzero.stages.read import read
from dayzero.stages.run.session import Way
from dayzero.stages.run.texts import Texts, generate
from dayzero.stages.run.wanted import Wanted

torch: Any = pytest.importorskip("torch")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
PROMPTS = ("abcde", "fg", "hijklm")
NEW = 6
LONG = 150
"""So many that ranks are still generating when one is killed after the first ones, however slow the killer is."""
GONE = ("model.layers.2.", "model.layers.3.")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.dense(tmp_path_factory.mktemp("session") / "model", dtype="float32")


@pytest.fixture(scope="module")
def wanted(root: Path) -> tuple[tuple[int, ...], ...]:
    return _library(root)


def _library(root: Path, layers: int = 0, new: int = NEW) -> tuple[tuple[int, ...], ...]:
    """Tokens of the library's own generation, of the first layers only."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(root, dtype=torch.float32).eval()
    if layers:
        del model.model.layers[layers:]
        model.config.num_hidden_layers = layers
    tokenizer = AutoTokenizer.from_pretrained(root)
    found = []
    for prompt in PROMPTS:
        ids = tokenizer(prompt, return_tensors="pt").input_ids
        made = model.generate(ids, max_new_tokens=new, do_sample=False, pad_token_id=0)
        found.append(tuple(made[0, ids.shape[1]:].tolist()))
    return tuple(found)


def _texts(root: Path, folder: Path, way: Way | None = None, new: int = NEW, **more: Any) -> Texts:
    return generate(read(str(root)), PROMPTS, folder=folder, way=way, wanted=Wanted(max_new_tokens=new), **more)


def _cli(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "dayzero.cli", *words], capture_output=True, text=True, check=False)


def _prompts(folder: Path) -> Path:
    file = folder / "prompts.txt"
    file.write_text("\n".join(PROMPTS))
    return file


def _record(folder: Path) -> RunRecord:
    return from_json((folder / "stream" / "record.json").read_bytes(), RunRecord)


@pytest.mark.parametrize("layout", ["tp=2", "pp=2"])
def test_texts_come_in_pieces_and_are_the_librarys(root: Path, wanted: object, tmp_path: Path, layout: str) -> None:
    pieces: list[list[str]] = [[], [], []]
    ends: dict[int, str] = {}
    made = _texts(root, tmp_path, Way(layout=Layout.parse(layout), timeline=True),
                  shown=lambda prompt, text: pieces[prompt].append(text),
                  ended=lambda prompt, why: ends.update({prompt: why}))
    assert made.tokens == wanted
    assert tuple(map("".join, pieces)) == made.texts
    assert sum(map(len, pieces)) > len(pieces)
    assert ends == dict(enumerate(made.finishes))
    run = _record(tmp_path).runs[0]
    assert [each.tokens for each in run.outputs] == list(made.tokens)
    assert run.layout == Layout.parse(layout) and [each.rank for each in run.ranks] == [0, 1]
    assert len(list((tmp_path / "stream").glob("timeline-*.json"))) == 2
    assert [each.category for each in run.overlap] == ["load", "collective"]


def test_one_load_answers_again_and_gives_logits(root: Path, wanted: object) -> None:
    from dayzero.runtime.load import load

    rows, drawn = [[5, 6, 7, 8], [9, 10]], list[Texts]()
    with torch.no_grad():
        truth = [load(root, "f32").model(torch.tensor([row])).logits[0] for row in rows]
    with backends().get("cpu").optimizations(attention="eager", norm="fused", kv_cache="dynamic"):
        plain = dayzero.load(root)
    with plain, dayzero.load(root, layout="pp=2") as cut:
        for model in (plain, cut):
            assert model.generate(PROMPTS, max_new_tokens=NEW).tokens == wanted
            pids = [child.pid for child in psutil.Process().children(recursive=True)]
            assert model.generate(PROMPTS[0], max_new_tokens=NEW).tokens == wanted[:1]  # type: ignore[index]
            assert [child.pid for child in psutil.Process().children(recursive=True)] == pids
            for got, true in zip(model.forward(rows), truth, strict=True):
                assert float((got - true).norm() / true.norm()) < 1e-5
            with pytest.raises(UsageError, match="more than the 256 that"):
                model.generate("a" * 300)
            drawn.append(model.generate(PROMPTS[:2], max_new_tokens=NEW, temperature=1.0, top_p=0.9, seed=5, samples=2))
            assert len(set(drawn[-1].tokens)) == len(drawn[-1].tokens) == 4
        assert drawn[0].tokens == drawn[1].tokens  # whatever the layout and the cache
        assert drawn[1].tokens[1:2] == cut.generate(PROMPTS[0], max_new_tokens=NEW, temperature=1.0, top_p=0.9,
                                                    seed=6).tokens
        _asked_while_others_are_served(cut, wanted)
        assert cut.layout == Layout(pp=2)
    assert not psutil.Process().children(recursive=True)


def test_threads_that_loaded_and_asked_may_end(root: Path, wanted: object) -> None:
    """What they started stays: the kernel ends a process with the thread that started it."""
    with ThreadPoolExecutor(1) as one:
        model = one.submit(dayzero.load, root).result()
    with ThreadPoolExecutor(1) as another:
        assert another.submit(model.generate, PROMPTS, max_new_tokens=NEW).result().tokens == wanted
    pids = [child.pid for child in psutil.Process().children(recursive=True)]
    assert model.generate(PROMPTS, max_new_tokens=NEW).tokens == wanted and not model.events
    assert [child.pid for child in psutil.Process().children(recursive=True)] == pids
    waiting = model.submit(PROMPTS[1], max_new_tokens=200)
    model.close()
    with pytest.raises(StageError, match="closed before that"):
        waiting.result()
    assert not psutil.Process().children(recursive=True)


def _asked_while_others_are_served(model: dayzero.library.Loaded, wanted: Any) -> None:
    long = model.submit(PROMPTS[1], max_new_tokens=200)
    pieces = iter(long)
    first = next(pieces)
    with ThreadPoolExecutor(3) as threads:
        texts = list(threads.map(lambda prompt: "".join(model.stream(prompt, max_new_tokens=NEW)), PROMPTS))
        rows = list(threads.map(lambda prompt: model.submit(prompt, max_new_tokens=NEW).result(), PROMPTS))
    assert texts == rows == list(model.generate(PROMPTS, max_new_tokens=NEW).texts)
    long.cancel()
    assert long.finish == "cancelled" and long.text.startswith(first) and not list(pieces)
    whole = model.generate(PROMPTS[0], max_new_tokens=40)
    stop = whole.texts[0][8:11]
    short = model.generate(PROMPTS[0], max_new_tokens=40, stop=stop)
    assert short.texts[0] == whole.texts[0].partition(stop)[0] and short.finishes == ("stop",)
    assert whole.tokens[0][:len(short.tokens[0])] == short.tokens[0]
    ended = model.generate(PROMPTS[0], max_new_tokens=NEW, stop_tokens=[wanted[0][2]])
    assert ended.tokens[0] == wanted[0][:wanted[0].index(wanted[0][2]) + 1] and ended.finishes == ("stop",)


def test_ranks_that_die_are_replaced_or_done_without(root: Path, tmp_path: Path) -> None:
    wanted = _library(root, new=LONG)
    def killing(prompt: int, text: str, seen: list[str], command: str) -> None:
        seen.append(text)
        if len(seen) == 1:
            _members(command)[1].kill()

    for spares, layout in ((1, Layout(pp=2)), (0, Layout())):
        folder, seen = tmp_path / str(spares), list[str]()
        made = _texts(root, folder, Way(layout=Layout(pp=2), spares=spares), LONG,
                      shown=lambda prompt, text, seen=seen, folder=folder: killing(prompt, text, seen, str(folder)))
        assert made.tokens == wanted
        loss = _record(folder).runs[0].losses[0]
        assert (loss.ranks, loss.taken_over, loss.layout) == ((1,), spares == 1, layout)
        assert sum("was ended by SIGKILL" in event for event in made.events) == 1


def _members(folder: str) -> list[psutil.Process]:
    """Of the ranks, in the order in which they were started."""
    return sorted((each for each in psutil.Process().children(recursive=True)
                   if {"dayzero.runtime.recovery.member", f"{folder}/stream"} <= set(each.cmdline())),
                  key=lambda each: each.pid)


def test_a_device_that_lacks_an_operator_runs_it_on_the_host(root: Path, wanted: object, tmp_path: Path,
                                                             monkeypatch: pytest.MonkeyPatch) -> None:
    if reason := backends().get("simulated").available():
        pytest.skip(reason)
    monkeypatch.setenv("DAYZERO_SIMULATED_DENY", "aten.silu")
    made = _texts(root, tmp_path, Way(layout=Layout(tp=2), backend="simulated"))
    assert made.tokens == wanted
    assert made.devices == ("simulated:0", "simulated:1") and made.peak_device_bytes > 0
    assert [event for event in made.events if "silu" in event] == [
        "operator aten::silu is not implemented on device type simulated and runs on the host, with copies"]
    monkeypatch.setenv("DAYZERO_SIMULATED_DEVICES", "1")
    done = _cli("run", str(root), "--stream", "--backend", "simulated", "--layout", "tp=2", "--runs", str(tmp_path))
    assert done.returncode == 2 and "2 ranks need as many devices, and backend simulated has 1" in done.stderr


def test_some_layers_are_run_as_what_they_are(root: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    part = tmp_path / "part"
    part.mkdir()
    for file in root.iterdir():
        (part / file.name).write_bytes(file.read_bytes())
    for file in part.glob("*.safetensors"):
        kept = {name: value for name, value in load_file(file).items() if not name.startswith(GONE)}
        file.unlink()
        if kept:
            save_file(kept, file, metadata={"format": "pt"})
    with pytest.raises(ReleaseError, match="only layers 0-1 of 4 are here"):
        _texts(part, tmp_path)
    made = _texts(part, tmp_path, Way(layout=Layout(pp=2), partial=True))
    assert made.tokens == _library(root, layers=2)
    assert made.events[0].startswith("only layers 0-1 of 4 are here: this is NOT the released model")
    run = _record(tmp_path).runs[0]
    assert [each.layers for each in run.ranks] == [(0,), (1,)] and run.events == made.events


def test_a_plan_says_how(root: Path, wanted: object, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"plans": [
        {"layout": {"tp": 2, "pp": 2}, "fits": False, "stages": [[0, 2], [2, 4]]},
        {"layout": {"pp": 2}, "fits": True, "stages": [[0, 3], [3, 4]]}]}))
    with dayzero.load(root, plan, folder=tmp_path) as model:
        assert model.generate(PROMPTS, max_new_tokens=NEW).tokens == wanted
        shares = model._session.shares
    assert [shares[rank].layers for rank in (0, 1)] == [(0, 1, 2), (3,)]
    done = _cli("run", str(root), "--stream", "--plan", str(plan), "--prompts", str(_prompts(tmp_path)), "--json",
                "--max-new-tokens", str(NEW), "--runs", str(tmp_path))
    told = json.loads(done.stdout)
    assert tuple(tuple(each["tokens"]) for each in told["outputs"]) == wanted
    assert told["layout"] == "pp=2" and told["repeat_identical"] is None
    plan.write_text(json.dumps({"plans": [{"layout": {}, "fits": True, "stages": [[0, 61]]}]}))
    with pytest.raises(UsageError, match="the plan is for 61 layers, the release has 4"):
        dayzero.load(root, plan)


def test_a_releases_own_code_serves_confined(tmp_path: Path) -> None:
    own = guest.write(tmp_path / "own")
    tiny._tokenizer().save_pretrained(own)
    with dayzero.load(own, trust_remote_code=True, folder=tmp_path) as alone:
        truth = alone.continued([[3, 4, 5]], max_new_tokens=NEW)
    with dayzero.load(own, layout="tp=2", trust_remote_code=True, folder=tmp_path) as cut:
        assert cut.continued([[3, 4, 5]], max_new_tokens=NEW) == truth


def test_an_interrupt_leaves_no_process(root: Path, tmp_path: Path) -> None:
    def interrupted(prompt: int, text: str) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        _texts(root, tmp_path, shown=interrupted)
    assert not psutil.Process().children(recursive=True)
