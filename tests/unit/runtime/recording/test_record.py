"""Recording of real (small) models of the library: every value that is kept is the one that the module had."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.tiny import DENSE, EXPERTS
from torch import nn

from dayzero.errors import StoreError, UsageError
from dayzero.runtime.golden import Dump, open_dump
from dayzero.runtime.golden.dump import Item
from dayzero.runtime.recording import Sampling, record
from dayzero.runtime.recording.rank import cache_of
from dayzero.schema.golden import Rows


def made(kind: str = "llama", settings: dict[str, Any] = DENSE, **changes: Any) -> Any:
    """A random model in f32."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **(settings | changes))
    return AutoModelForCausalLM.from_config(config).eval()


@pytest.fixture(scope="module")
def dense() -> Any:
    return made()


def one(dump: Dump, name: str, what: str = "output", slot: str | None = None, pass_no: int = 0) -> Item:
    found = [item for item in dump.items if (item.entry.name, item.entry.what, item.entry.pass_no)
             == (name, what, pass_no) and slot in (None, item.entry.slot)]
    assert len(found) == 1, (name, what, slot, len(found))
    return found[0]


def by_row(dump: Dump, name: str, what: str = "output") -> dict[tuple[int, int], np.ndarray]:
    """{(sequence, position): values} over all passes."""
    return {(sequence, position): values
            for item in dump.items if (item.entry.name, item.entry.what) == (name, what)
            for (sequence, position), values in zip(dump.rows(item).tolist(), dump.read(item), strict=True)
            if sequence >= 0}


def test_values_are_those_of_the_modules(dense: Any, tmp_path: Path) -> None:
    heard: dict[str, torch.Tensor] = {}
    handles = [module.register_forward_hook(lambda _m, _a, out, name=name: heard.update(
        {name: out[0] if isinstance(out, tuple) else out})) for name, module in dense.named_modules()
        if name.endswith(("_proj", "norm", "mlp", "embed_tokens", "layers.2"))]
    ids = torch.arange(10, 17)[None]
    with torch.no_grad(), record(dense, tmp_path / "d"):
        logits = dense(ids).logits
    for handle in handles:
        handle.remove()
    assert len(heard) == 4 * 10 + 3
    with open_dump(tmp_path / "d") as dump:
        for name, value in heard.items():
            item = one(dump, name)
            dump.verify(item)
            assert item.entry.axes == ("token", "channel")
            np.testing.assert_array_equal(dump.read(item), value[0].numpy(), err_msg=name)
            assert item.entry.statistics.rms == pytest.approx(float(value.square().mean().sqrt()), rel=1e-5)
        np.testing.assert_array_equal(dump.read(one(dump, "", "logits")), logits[0].numpy())
        assert dump.sequences[0].tolist() == ids[0].tolist()
        kinds = Counter(item.entry.kind for item in dump.items if item.entry.what == "output")
        assert kinds == {"linear": 28, "norm": 9, "layer": 4, "attention": 4, "feed_forward": 4, "embedding": 1,
                         "head": 1, "other": 2}  # other: tables of angles


def test_what_goes_in_is_what_came_out_before(dense: Any, tmp_path: Path) -> None:
    with torch.no_grad(), record(dense, tmp_path / "d"):
        dense(torch.arange(10, 17)[None])
    with open_dump(tmp_path / "d") as dump:
        came = one(dump, "model.layers.1")
        went = one(dump, "model.layers.2", "input", "hidden_states")
        assert came.place == went.place, "it is kept once"
        assert one(dump, "model.layers.1.self_attn", "input", "position_embeddings.0").entry.shape == (7, 16)
        assert not [item for item in dump.items if "mask" in item.entry.slot]
        stored = sum(item.place.nbytes for item in {item.place: item for item in dump.items}.values())
        assert stored < 0.6 * sum(item.place.nbytes for item in dump.items)


def test_bf16_stays_bf16(tmp_path: Path) -> None:
    model = made().to(torch.bfloat16)
    with torch.no_grad(), record(model, tmp_path / "d"):
        logits = model(torch.arange(10, 17)[None]).logits
    with open_dump(tmp_path / "d") as dump:
        item = one(dump, "", "logits")
        assert (item.entry.dtype, item.dump.origin.dtype) == ("BF16", "BF16")
        np.testing.assert_array_equal(dump.read(item), logits[0].float().numpy())


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_is_told_and_rows_are_those_of_each_alone(dense: Any, tmp_path: Path, side: str) -> None:
    texts = [[11, 12, 13, 14, 15], [21, 22]]
    width = max(map(len, texts))
    padded, mask = [], []
    for text in texts:
        pad, real = [0] * (width - len(text)), [1] * len(text)
        padded.append(pad + text if side == "left" else text + pad)
        mask.append(pad + real if side == "left" else real + pad)
    places = torch.tensor(mask).cumsum(1).sub(1).clamp(min=0)
    with torch.no_grad(), record(dense, tmp_path / "batch"):
        dense(torch.tensor(padded), attention_mask=torch.tensor(mask), position_ids=places)
    with torch.no_grad(), record(dense, tmp_path / "alone"):
        for text in texts:
            dense(torch.tensor([text]))
    with open_dump(tmp_path / "batch") as batch, open_dump(tmp_path / "alone") as alone:
        assert {number: ids.tolist() for number, ids in batch.sequences.items()} == dict(enumerate(texts))
        ours, theirs = by_row(batch, "model.layers.3"), by_row(alone, "model.layers.3")
        assert ours.keys() == theirs.keys() and len(ours) == 7
        for row, values in ours.items():
            np.testing.assert_allclose(values, theirs[row], atol=1e-4, err_msg=str(row))


def test_decode_steps_go_on_and_give_the_rows_of_the_whole(dense: Any, tmp_path: Path) -> None:
    ids = torch.tensor([[31, 32, 33, 34, 35, 36]])
    with torch.no_grad(), record(dense, tmp_path / "steps", modules=["layer", "model"]):
        output = dense(ids[:, :3], use_cache=True)
        for at in range(3, 6):
            output = dense(ids[:, at:at + 1], use_cache=True, **cache_of(output))
        dense(torch.tensor([[41, 42]]))
    with torch.no_grad(), record(dense, tmp_path / "whole", modules=["layer", "model"]):
        dense(ids)
    with open_dump(tmp_path / "steps") as steps, open_dump(tmp_path / "whole") as whole:
        assert [each.phase for each in steps.passes[0].values()] == ["prefill", *["decode"] * 3, "prefill"]
        assert steps.sequences[0].tolist() == ids[0].tolist()
        assert steps.sequences[1].tolist() == [41, 42]
        ours, theirs = by_row(steps, "model.layers.3"), by_row(whole, "model.layers.3")
        for row, values in theirs.items():
            np.testing.assert_allclose(ours[row], values, atol=1e-4)


def test_the_librarys_own_generation_is_followed(dense: Any, tmp_path: Path) -> None:
    ids, mask = torch.tensor([[5, 6, 7], [0, 0, 8]]), torch.tensor([[1, 1, 1], [0, 0, 1]])
    with record(dense, tmp_path / "d", modules=["layer"]):
        texts = dense.generate(ids, attention_mask=mask, max_new_tokens=3, min_new_tokens=3, do_sample=False)
    with open_dump(tmp_path / "d") as dump:
        assert dump.sequences[0].tolist() == texts[0, :-1].tolist()
        assert dump.sequences[1].tolist() == texts[1, 2:-1].tolist()
        last = one(dump, "", "logits")
        assert dump.rows(last).tolist() == [[0, 2], [1, 0]], "logits of the last position only"


def test_packed_sequences_are_told_apart(dense: Any, tmp_path: Path) -> None:
    with torch.no_grad(), record(dense, tmp_path / "packed", modules=["layer"]):
        dense(torch.tensor([[11, 12, 13, 21, 22]]), position_ids=torch.tensor([[0, 1, 2, 0, 1]]), use_cache=False)
    with torch.no_grad(), record(dense, tmp_path / "alone", modules=["layer"]):
        dense(torch.tensor([[11, 12, 13]]))
        dense(torch.tensor([[21, 22]]))
    with open_dump(tmp_path / "packed") as packed, open_dump(tmp_path / "alone") as alone:
        ours, theirs = by_row(packed, "model.layers.0"), by_row(alone, "model.layers.0")
        assert ours.keys() == theirs.keys() and len(ours) == 5
        for row, values in theirs.items():
            np.testing.assert_allclose(ours[row], values, atol=1e-4)


def test_routers_decisions(tmp_path: Path) -> None:
    model = made("qwen3_moe", EXPERTS)
    with torch.no_grad(), record(model, tmp_path / "d"):
        model(torch.arange(10, 17)[None])
    with open_dump(tmp_path / "d") as dump:
        router = "model.layers.2.mlp.gate"
        scores, chosen, weights = (dump.read(one(dump, router, "router", slot))
                                   for slot in ("scores", "indices", "weights"))
        assert scores.shape == (7, 8) and chosen.shape == weights.shape == (7, 2)
        best = np.argsort(-scores, axis=1, kind="stable")[:, :2]
        np.testing.assert_array_equal(np.sort(best), np.sort(chosen))
        np.testing.assert_array_equal(chosen, dump.read(one(dump, "model.layers.2.mlp.experts", "router", "indices")))
        assert one(dump, router, "router", "indices").entry.dtype == "I64"


def test_samples_keep_the_same_rows_whatever_else_is_in_the_batch(dense: Any, tmp_path: Path) -> None:
    text = torch.arange(40, 104)[None]
    more = torch.cat([torch.arange(100, 164)[None], text])
    sampling = Sampling(0.25, 0.5, seed=7)
    with torch.no_grad(), record(dense, tmp_path / "a", mode="sampled", sampling=sampling) as recording:
        recording.expect([1])
        dense(text)
    with torch.no_grad(), record(dense, tmp_path / "b", mode="sampled", sampling=sampling):
        dense(more)
    with open_dump(tmp_path / "a") as few, open_dump(tmp_path / "b") as many:
        ours, theirs = by_row(few, "model.layers.3.mlp"), by_row(many, "model.layers.3.mlp")
        assert 4 < len(ours) < 32 and ours.keys() == {row for row in theirs if row[0] == 1}
        assert 16 < len(next(iter(ours.values()))) < 48
        for row, values in ours.items():
            np.testing.assert_allclose(values, theirs[row], atol=1e-4)


def test_statistics_keep_no_values(dense: Any, tmp_path: Path) -> None:
    with torch.no_grad(), record(dense, tmp_path / "d", mode="statistics"):
        logits = dense(torch.arange(10, 17)[None]).logits
    with open_dump(tmp_path / "d") as dump:
        told = one(dump, "", "logits").entry.statistics
        assert (told.count, told.nan, told.inf) == (7 * 300, 0, 0)
        assert told.maximum == pytest.approx(float(logits.max()))
        with pytest.raises(StoreError, match="no values"):
            dump.read(dump.items[0])


def test_gradients_are_those_of_the_parameters_and_outputs(tmp_path: Path) -> None:
    model = made()
    with record(model, tmp_path / "d", gradients="outputs"):
        output = model(torch.arange(10, 17)[None])
        output.logits.retain_grad()
        output.logits.square().mean().backward()
    with open_dump(tmp_path / "d") as dump:
        assert [each.phase for each in dump.passes[0].values()] == ["prefill", "backward"]
        for name, parameter in model.named_parameters():
            np.testing.assert_array_equal(dump.read(one(dump, name, "gradient", pass_no=1)), parameter.grad.numpy())
        item = one(dump, "", "gradient", "logits", 1)
        np.testing.assert_array_equal(dump.read(item), output.logits.grad[0].numpy())
        assert dump.rows(item).tolist() == [[0, position] for position in range(7)]
        assert one(dump, "model.layers.0.mlp", "gradient", pass_no=1).entry.axes == ("token", "channel")


def test_what_is_computed_again_on_the_way_back_is_not_recorded_twice(tmp_path: Path) -> None:
    model = made().train()
    model.activation_checkpointing_enable()
    with record(model, tmp_path / "d", gradients="parameters", modules=["layer", "linear"]):
        model(torch.arange(10, 17)[None], use_cache=False).logits.square().mean().backward()
    with open_dump(tmp_path / "d") as dump:
        one(dump, "model.layers.3.mlp.up_proj")
        assert one(dump, "model.layers.3.mlp.up_proj.weight", "gradient", pass_no=1)


class InPlace(nn.Module):
    """Changes what it was given, and what it gave."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, hidden: torch.Tensor) -> Any:
        once = self.first(hidden)
        kept = once.clone()
        once.mul_(2)
        return {"sum": self.second(once), "parts": (kept, [once])}


@pytest.mark.parametrize("inference", [False, True])
def test_values_are_of_the_moment_and_nested_outputs_are_found(tmp_path: Path, inference: bool) -> None:
    model, given = InPlace(), torch.ones(1, 3, 4)
    with torch.inference_mode(inference), torch.no_grad(), record(model, tmp_path / "d", modules="all"):
        output = model(given)
    with open_dump(tmp_path / "d") as dump:
        np.testing.assert_array_equal(dump.read(one(dump, "first")).reshape(3, 4), output["parts"][0][0].numpy())
        np.testing.assert_array_equal(dump.read(one(dump, "second", "input")).reshape(3, 4),
                                      2 * output["parts"][0][0].numpy())
        assert {item.entry.slot for item in dump.items if not item.entry.name} == {"sum", "parts.0", "parts.1.0"}


def test_modules_that_are_called_twice_are_counted(tmp_path: Path) -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, hidden: torch.Tensor) -> torch.Tensor:
            return self.layer(self.layer(hidden))

    model = Twice()
    with torch.no_grad(), record(model, tmp_path / "d", modules="leaves", inputs=False):
        given = torch.ones(3, 4)
        model(given)
    with open_dump(tmp_path / "d") as dump:
        calls = [item for item in dump.items if item.entry.name == "layer"]
        assert [item.entry.call for item in calls] == [0, 1]
        np.testing.assert_array_equal(dump.read(calls[1]), model(given).detach().numpy())


def test_an_exception_leaves_a_dump_that_says_so(dense: Any, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="enough"), torch.no_grad(), record(dense, tmp_path / "d"):
        dense(torch.arange(10, 17)[None])
        raise RuntimeError("enough")
    with pytest.raises(StoreError, match="RuntimeError: enough"):
        open_dump(tmp_path / "d")
    with open_dump(tmp_path / "d", unfinished=True) as dump:
        one(dump, "", "logits")
    assert not any(module._forward_hooks for module in dense.modules()), "nothing listens any more"


def test_a_folder_that_cannot_be_written_is_told_at_the_end_and_the_model_runs_on(dense: Any, tmp_path: Path) -> None:
    import shutil

    folder, ran = tmp_path / "d", 0
    with pytest.raises(StoreError), torch.no_grad(), record(dense, folder) as recording:
        shutil.rmtree(folder)
        folder.write_text("a file stands there")
        for _ in range(3):
            dense(torch.arange(10, 17)[None])
            ran += 1
            recording.recorder.stream._put(recording.recorder.stream.writer.flush, 0)
    assert ran == 3


def test_pauses_are_not_recorded(dense: Any, tmp_path: Path) -> None:
    with torch.no_grad(), record(dense, tmp_path / "d", modules=["layer"]) as recording:
        with recording.paused():
            dense(torch.arange(10, 17)[None])
        dense(torch.arange(20, 23)[None])
    with open_dump(tmp_path / "d") as dump:
        assert dump.sequences[0].tolist() == [20, 21, 22]


@pytest.mark.slow
def test_compiled_code_is_not_seen_and_that_is_said(dense: Any, tmp_path: Path) -> None:
    model = made()
    compiled = torch.compile(model, backend="eager")
    with torch.no_grad():
        compiled(torch.arange(10, 17)[None])
        with record(compiled, tmp_path / "d"):
            logits = compiled(torch.arange(10, 17)[None]).logits
    with open_dump(tmp_path / "d") as dump:
        np.testing.assert_array_equal(dump.read(one(dump, "", "logits")), logits[0].numpy())
        assert "ran inside of compiled code" in dump.ranks[0].origin.notes[0]


def test_only_some_layers(dense: Any, tmp_path: Path) -> None:
    with torch.no_grad(), record(dense, tmp_path / "d", layers=[1, 3]):
        dense(torch.arange(10, 17)[None])
    with open_dump(tmp_path / "d") as dump:
        names = {item.entry.name for item in dump.items}
    assert {name.split(".")[2] for name in names if name.startswith("model.layers")} == {"1", "3"}
    assert "lm_head" in names


@pytest.mark.parametrize(("options", "said"), [
    ({"modules": ["nothing.*"]}, "no module"), ({"layers": [4]}, "there is no layer 4"),
    ({"gradients": "all"}, "no gradients of"), ({"sampling": (0.0, 1.0)}, "is none")])
def test_wrong_requests(dense: Any, tmp_path: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        if "sampling" in options:
            options = {"sampling": Sampling(*options["sampling"])}
        with record(dense, tmp_path / "d", **options):
            pass
    assert not list(tmp_path.iterdir())


def test_three_lines_in_a_script(dense: Any, tmp_path: Path) -> None:
    import dayzero

    with torch.no_grad(), dayzero.record(dense, tmp_path / "d"):
        dense(torch.arange(10, 17)[None])
    with open_dump(tmp_path / "d") as dump:
        assert dump.finished


def test_rows_that_are_not_as_many_as_the_call_has_are_refused(tmp_path: Path) -> None:
    def rows(_: dict[str, Any]) -> tuple[Rows, ...]:
        return (Rows(sequence=0, first=0, count=2),)

    model = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 4))
    with pytest.raises(UsageError, match="2 rows of a call with 3"), record(model, tmp_path / "d", rows=rows):
        model(torch.tensor([[1, 2, 3]]))
