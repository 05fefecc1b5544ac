"""The parts of a rank's work that need no second rank, on a small model in this process."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.support import tiny

from dayzero.errors import NotPossible, ReleaseError, StoreError
from dayzero.runtime.assignment import Assignment, Pass
from dayzero.runtime.dumps import Dump, Sketches
from dayzero.runtime.mesh import Place
from dayzero.schema import Layout

torch = pytest.importorskip("torch")
from dayzero.runtime import dump as dumping  # noqa: E402
from dayzero.runtime import generate as generation  # noqa: E402
from dayzero.runtime import gradients, load, passes  # noqa: E402
from dayzero.runtime.building import decoder_layers  # noqa: E402
from dayzero.runtime.rank import Held, Rank  # noqa: E402
from dayzero.runtime.sharding import Mesh  # noqa: E402

PROMPTS = [(0, (10, 20, 30, 40, 50)), (1, (60, 70)), (2, (80, 90, 100))]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.dense(tmp_path_factory.mktemp("tiny") / "model", dtype="float32")


@pytest.fixture(scope="module")
def model(root: Path):
    return load.load(root, "f32").model


def _greedy(model, tokens, count):
    """The slowest way: the whole text again for each token."""
    row = list(tokens)
    with torch.no_grad():
        for _ in range(count):
            row.append(int(model(torch.tensor([row])).logits[0, -1].argmax()))
    return row[len(tokens):]


def test_padded_batches_generate_what_single_prompts_do(model) -> None:
    steps = generation.generate(model, PROMPTS, batch=2, max_new_tokens=6)
    assert [output.prompt for output in steps.outputs] == [0, 1, 2]
    for output, (_, tokens) in zip(steps.outputs, PROMPTS, strict=True):
        assert list(output.tokens) == _greedy(model, tokens, 6)[:len(output.tokens)]
    assert len(steps.seconds) == len(steps.tokens) == 2 * 5  # two batches, the first token of each is no decode step
    assert steps.tokens[:5] == [2] * 5 and steps.tokens[5:] == [1] * 5
    assert steps.digest == generation.generate(model, PROMPTS, batch=2, max_new_tokens=6).digest
    assert steps.digest != generation.generate(model, PROMPTS[:2], batch=2, max_new_tokens=6).digest


def test_margins_are_those_of_the_logits(model) -> None:
    (output,) = generation.generate(model, PROMPTS[:1], batch=1, max_new_tokens=2).outputs
    with torch.no_grad():
        best = model(torch.tensor([PROMPTS[0][1]])).logits[0, -1].topk(2).values
    assert output.margins[0] == pytest.approx(float(best[0] - best[1]), rel=1e-4)


def test_a_text_ends_with_its_end_token(model) -> None:
    after_first = _greedy(model, PROMPTS[0][1], 3)
    model.generation_config.eos_token_id = after_first[1]
    try:
        steps = generation.generate(model, PROMPTS[:1], batch=1, max_new_tokens=8)
    finally:
        model.generation_config.eos_token_id = 1
    cut = after_first.index(after_first[1]) + 1
    assert list(steps.outputs[0].tokens) == after_first[:cut] and steps.outputs[0].finish == "stop"


def test_a_releases_sampling_advice_is_left_out(root: Path, tmp_path: Path) -> None:
    for path in root.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    advice = '{"do_sample": true, "repetition_penalty": 9.0, "eos_token_id": 7}'
    (tmp_path / "generation_config.json").write_text(advice)
    config = load.load(tmp_path, "f32").model.generation_config
    assert (config.repetition_penalty or 1.0, config.do_sample, config.eos_token_id) == (1.0, False, 7)


def _alone(root: Path, dtype: str) -> tuple[Rank, Held]:
    """One rank that is all there is."""
    rank = Rank(root, dtype)
    held = rank.prepare(Layout(), 0)
    rank.join(Mesh(Layout(), 0))
    return rank, held


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
def test_what_is_held_is_told(root: Path, dtype: str) -> None:
    rank, held = _alone(root, dtype)
    loaded = load.load(root, dtype)
    assert held.parameters == rank.parameters == sum(p.numel() for p in loaded.model.parameters()) == loaded.parameters
    assert held.weight_bytes == {"bf16": 2, "f32": 4}[dtype] * held.parameters == loaded.weight_bytes
    assert held.bytes_read == 4 * held.parameters and held.layers == loaded.layers == (0, 1, 2, 3)
    for name, value in loaded.model.state_dict().items():
        assert torch.equal(rank.model.state_dict()[name], value), name


def test_a_place_that_is_taken_again_is_not_read_again(root: Path) -> None:
    rank, held = _alone(root, "f32")
    with torch.no_grad():
        before = rank.model(torch.tensor([[3, 4, 5]])).logits
    assert rank.prepare(Layout(), 0).bytes_read == 0 < held.bytes_read
    rank.join(Mesh(Layout(), 0))
    with torch.no_grad():
        assert torch.equal(rank.model(torch.tensor([[3, 4, 5]])).logits, before)
    first, second = (rank.prepare(Layout(pp=2), stage) for stage in (0, 1))
    assert first.bytes_read == 0 and second.layers == (2, 3) and 0 < second.bytes_read < held.bytes_read


def test_the_text_model_of_one_with_a_tower(tmp_path: Path) -> None:
    """Its four layers, not the tower's six; it is the model of the other tests, with other names."""
    root = tiny.pictured(tmp_path / "model", dtype="float32")
    rank, held = _alone(root, "f32")
    assert held.layers == (0, 1, 2, 3) and not held.unused and held.parameters == rank.parameters
    steps = generation.generate(rank.model, PROMPTS[:1], batch=1, max_new_tokens=4)
    assert list(steps.outputs[0].tokens) == _greedy(rank.model, PROMPTS[0][1], 4)
    heard = dumping.outputs(rank.model, PROMPTS[0][1], last_stage=True)
    assert set(heard) == {"embedding", "norm", "logits", *(f"layers.{number}" for number in range(4))}


def _renamed(root: Path, folder: Path, old: str, new: str | None, *, rows: int | None = None) -> Path:
    """A copy in which one tensor has another name, or is cut to some rows, or is gone."""
    import json

    from safetensors.torch import load_file, save_file

    folder.mkdir()
    for path in root.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    index = folder / "model.safetensors.index.json"
    table = json.loads(index.read_text())
    shard = folder / table["weight_map"].pop(old)
    tensors = load_file(shard)
    value = tensors.pop(old)[:rows].clone()
    if new:
        table["weight_map"][new], tensors[new] = shard.name, value
    save_file(tensors, shard, metadata={"format": "pt"})
    index.write_text(json.dumps(table))
    return folder


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize(("new", "rows", "message", "hint"), [
    ("model.nrm.weight", None, "the files do not hold model.norm.weight of the model", "hold model.nrm.weight"),
    (None, None, "the files do not hold model.norm.weight of the model", "fetch the files again"),
    ("model.norm.weight", 8, r"model.norm.weight is stored as \[8\], but the model has \[64\]", "fetch"),
])
def test_a_model_that_the_files_do_not_fill_is_refused(root: Path, tmp_path: Path, new, rows, message, hint,
                                                         plain) -> None:
    """The library would invent the rest, alike in a run and in its reference."""
    odd = _renamed(root, tmp_path / "odd", "model.norm.weight", new, rows=rows)
    with pytest.raises(ReleaseError, match=message) as caught:
        (load.load if plain else _alone)(odd, "f32")
    assert hint in caught.value.hint and "\n" not in caught.value.hint


def test_an_expert_that_lacks_a_matrix_is_refused(tmp_path: Path) -> None:
    root = tiny.experts(tmp_path / "model")
    gone = _renamed(root, tmp_path / "gone", "model.layers.1.mlp.experts.3.down_proj.weight", None)
    with pytest.raises(ReleaseError, match=r"experts.down_proj is stored as \[7, 64, 32\], but the model has \[8, "):
        load.load(gone, "bf16")


def test_an_expert_that_lacks_one_of_two_matrices_that_are_joined_is_refused(tmp_path: Path) -> None:
    root = tiny.experts(tmp_path / "model")
    gone = _renamed(root, tmp_path / "gone", "model.layers.1.mlp.experts.3.gate_proj.weight", None)
    with pytest.raises(ReleaseError, match=r"layers.1.mlp.experts.gate_up_proj cannot be made .*: .*size 7 but got"):
        load.load(gone, "bf16")


def test_a_tied_head_is_not_missing_and_what_is_left_over_is_told(tmp_path: Path) -> None:
    root = tiny.dense(tmp_path / "model", tie_word_embeddings=True)
    assert load.load(root, "bf16").unused == ""
    from safetensors.torch import save_file

    index = root / "model.safetensors.index.json"
    index.write_text(index.read_text().replace('"weight_map": {', '"weight_map": {"model.extra": "extra.safetensors",'))
    save_file({"model.extra": torch.zeros(3)}, root / "extra.safetensors", metadata={"format": "pt"})
    assert load.load(root, "bf16").unused == "the files hold model.extra, which the model has no place for"


def test_many_tensors_are_named_by_the_first() -> None:
    info = {"missing_keys": {f"w{number}" for number in range(9)}, "unexpected_keys": set(), "mismatched_keys": set(),
            "error_msgs": []}
    with pytest.raises(ReleaseError, match="do not hold w0, w1, w2 and 6 more of the model"):
        load.check_filled(info)


def test_weights_are_no_longer_mapped_from_the_files(root: Path, tmp_path: Path) -> None:
    """Through links too: the hub's cache keeps its files elsewhere."""
    for path in root.iterdir():
        (tmp_path / path.name).symlink_to(path)
    from transformers import AutoModelForCausalLM

    raw = AutoModelForCausalLM.from_pretrained(tmp_path, dtype="auto", local_files_only=True)
    def mapped(model) -> int:
        ranges = load.mapped_ranges(tmp_path)
        return sum(any(start <= p.data_ptr() < end for start, end in ranges) for p in model.parameters())
    assert mapped(raw) == len(list(raw.parameters()))
    assert mapped(load.load(tmp_path, "f32").model) == 0


def test_a_dump_holds_every_layer_of_every_prompt(model, tmp_path: Path) -> None:
    digest = dumping.dump(model, PROMPTS, tmp_path / "f32-rank-0.safetensors", last_stage=True)
    read = Dump(tmp_path, "f32")
    assert read.prompts == (0, 1, 2)
    assert read.places == ("embedding", "layers.0", "layers.1", "layers.2", "layers.3", "norm", "logits")
    with torch.no_grad():
        full = model(torch.tensor([PROMPTS[1][1]]), output_hidden_states=True)
    added = full.hidden_states[2] - full.hidden_states[1]
    np.testing.assert_array_equal(read.read(1, "layers.1"), added[0].numpy())
    np.testing.assert_array_equal(read.read(1, "norm"), full.hidden_states[-1][0].numpy())
    np.testing.assert_array_equal(read.read(1, "logits"), full.logits[0].numpy())
    assert digest == dumping.dump(model, PROMPTS, None, last_stage=True)
    assert digest != dumping.dump(model, PROMPTS, None, last_stage=False)
    with pytest.raises(StoreError, match=r"no layers\.9"):
        read.read(0, "layers.9")


def test_dumps_that_are_gone_or_damaged(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no dumps"):
        Dump(tmp_path, "f32")
    (tmp_path / "f32-rank-0.safetensors").write_bytes(b"\x08\x00\x00\x00\x00\x00\x00\x00{}")
    with pytest.raises(StoreError, match="damaged"):
        Dump(tmp_path, "f32")


@pytest.mark.parametrize("key", ["embedding", "x/embedding", "0/layers.a", "0/other"])
def test_a_dump_of_odd_names_is_damaged(tmp_path: Path, key: str) -> None:
    from safetensors.numpy import save_file

    save_file({key: np.ones((2, 2), np.float32)}, tmp_path / "f32-rank-0.safetensors")
    with pytest.raises(StoreError, match=r"damaged: .* is no prompt and place"):
        Dump(tmp_path, "f32")


def test_two_ranks_that_dumped_the_same(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    for rank in (0, 1):
        save_file({"0/embedding": np.ones((2, 2), np.float32)}, tmp_path / f"f32-rank-{rank}.safetensors")
    with pytest.raises(StoreError, match="both hold 0/embedding"):
        Dump(tmp_path, "f32")


def test_gradients_that_are_damaged(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    path = tmp_path / "gradients-rank-0.safetensors"
    for metadata in (None, {}, {"rows": "x"}):
        save_file({"a": np.ones(4, np.float32)}, path, metadata=metadata)
        with pytest.raises(StoreError, match="damaged"):
            Sketches(tmp_path)
    for rank, width in enumerate((4, 5)):
        save_file({"a": np.ones(width, np.float32)}, tmp_path / f"gradients-rank-{rank}.safetensors",
                  metadata={"rows": "2"})
    with pytest.raises(StoreError, match="damaged"):
        Sketches(tmp_path)


def test_sketches_are_linear_and_estimate_lengths() -> None:
    generator = torch.Generator().manual_seed(3)
    a, b = (torch.randn(50_000, generator=generator) for _ in range(2))
    torch.testing.assert_close(gradients.sketch(a + b), gradients.sketch(a) + gradients.sketch(b), rtol=1e-4, atol=1e-4)
    # The standard deviation of the estimate is sqrt(2 / WIDTH) of the squared length: 4.4 %.
    ratio = float(gradients.sketch(a - b).norm() / (a - b).norm())
    assert ratio == pytest.approx(1.0, abs=0.1)
    one = torch.zeros(50_000)
    one[31_415] = 2.0
    assert float(gradients.sketch(one).norm()) == 2.0, "every element counts"


def test_the_batch_for_gradients_has_no_padding() -> None:
    batch = gradients.small_batch([(1, 2, 3), (4, 5)], rows=4)
    assert batch.tolist() == [[1, 2], [4, 5], [1, 2], [4, 5]]


def test_sketches_of_stages_are_added(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    for rank, value in enumerate((1.0, 2.5)):
        save_file({"tied": np.full(4, value, np.float32), f"own.{rank}": np.ones(4, np.float32)},
                  tmp_path / f"gradients-rank-{rank}.safetensors", metadata={"rows": "2", "length": "3"})
    read = Sketches(tmp_path)
    assert read.rows == 2 and sorted(read.values) == ["own.0", "own.1", "tied"]
    np.testing.assert_array_equal(read.values["tied"], np.full(4, 3.5))


class _Alone:
    """Stands for the mesh of a rank that is alone."""

    place = Place(Layout(), 0)

    def all_agree(self, opinion: bool) -> bool:
        return opinion


@pytest.mark.parametrize(("free", "kept"), [(2**40, True), (2**10, False)])
def test_gradients_that_do_not_fit_are_left_out_and_said(monkeypatch, tmp_path: Path, free: int, kept: bool) -> None:
    assignment = Assignment(root="r", layout=Layout(), passes=(), prompts=(), max_new_tokens=1, batch=1, seed=0,
                            gradient_rows=2)
    monkeypatch.setattr(passes.host, "available_memory", lambda: free)
    rank = passes._Rank(assignment, _Alone(), None, tmp_path, lambda text: None, parameters=1000)
    assert rank.affordable(Pass(dtype="f32", gradients=True)).idle is not kept
    assert rank.events == ([] if kept else [
        "no pass in f32: the weights in f32 take 3.91 KiB on this machine, which has 1.00 KiB free"])
    assert rank.affordable(Pass(dtype="f32", dump=True)) == Pass(dtype="f32", dump=True)


@pytest.mark.parametrize(("layout", "held", "word"), [
    (Layout(), 1000, ""), (Layout(tp=2), 550, ""), (Layout(tp=2), 990, "99%"),
])
def test_a_split_that_splits_little_is_said(tmp_path: Path, layout: Layout, held: int, word: str) -> None:
    assignment = Assignment(root="r", layout=layout, passes=(), prompts=(), max_new_tokens=1, batch=1, seed=0,
                            gradient_rows=2)
    mesh = _Alone()
    mesh.place = Place(layout, 0)
    rank = passes._Rank(assignment, mesh, None, tmp_path, lambda text: None, parameters=1000)
    said = rank.split(Held(layers=(), parameters=held, weight_bytes=0, bytes_read=0, seconds=0.0, unused=""))
    assert word in said and bool(said) is bool(word)


class _Odd(torch.nn.Module):
    """Five layers under an unusual name, each with a list of nine experts."""

    def __init__(self, layers: int = 5) -> None:
        super().__init__()
        self.heads = torch.nn.ModuleList(torch.nn.Identity() for _ in range(2))
        self.odd_name = torch.nn.ModuleList(torch.nn.Sequential(torch.nn.ModuleList([torch.nn.Identity()] * 9))
                                            for _ in range(layers))

    def get_decoder(self) -> torch.nn.Module:
        return self


def test_layers_are_found_without_their_names() -> None:
    model = _Odd()
    assert decoder_layers(model) is model.odd_name
    del model.heads, model.odd_name
    with pytest.raises(NotPossible, match="no list of layers"):
        decoder_layers(model)
