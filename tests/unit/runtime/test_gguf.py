"""Import of a tiny GGUF that the test writes: two quantised layers and a byte-level tokenizer of a few tokens."""

from __future__ import annotations

import hashlib
import json
import resource
from pathlib import Path

import numpy as np
import pytest

from dayzero.errors import ReleaseError, StoreError, UsageError
from dayzero.progress import SILENT, Progress
from dayzero.runtime.gguf import import_gguf, read_header
from dayzero.schema.manifest import MANIFEST

gguf = pytest.importorskip("gguf")
pytest.importorskip("transformers")

HIDDEN, WIDTH, LAYERS, HEADS, KV_HEADS = 32, 64, 2, 4, 2
TOKENS = ["<end>", "<start>", "a", "b", "ab", "Ġ"]


def _add_header(writer: gguf.GGUFWriter) -> None:
    writer.add_block_count(LAYERS)
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(WIDTH)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(len(TOKENS))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3, 3, 1, 1, 1, 1])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(0)
    writer.add_chat_template("{% for message in messages %}{{ message['content'] }}{% endfor %}")


def _tensors() -> dict[str, np.ndarray]:
    """f32 tensors by ggml's names; matrices [out, in]."""
    random = np.random.default_rng(0)
    head = HIDDEN // HEADS
    shapes = {"token_embd.weight": (len(TOKENS), HIDDEN), "output_norm.weight": (HIDDEN,)}
    for layer in range(LAYERS):
        shapes |= {f"blk.{layer}.{name}.weight": shape for name, shape in {
            "attn_norm": (HIDDEN,), "ffn_norm": (HIDDEN,), "attn_q": (HIDDEN, HIDDEN),
            "attn_k": (KV_HEADS * head, HIDDEN), "attn_v": (KV_HEADS * head, HIDDEN), "attn_output": (HIDDEN, HIDDEN),
            "ffn_gate": (WIDTH, HIDDEN), "ffn_up": (WIDTH, HIDDEN), "ffn_down": (HIDDEN, WIDTH)}.items()}
    return {name: random.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}


def _write(path: Path, architecture: str = "llama", parts: int = 1) -> dict[str, np.ndarray]:
    """A GGUF at `path` with matrices in Q8_0; returns the f32 tensors that were quantised."""
    writer = gguf.GGUFWriter(path, architecture)
    _add_header(writer)
    if parts > 1:
        writer.add_uint16("split.count", parts)
    tensors = _tensors()
    for name, tensor in tensors.items():
        if tensor.ndim == 1:
            writer.add_tensor(name, tensor)
        else:
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(name, gguf.quants.quantize(tensor, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tensors


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.gguf"
    _write(path)
    return path


def test_release_holds_config_tokenizer_and_dequantised_weights(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    source = tmp_path / "tiny.gguf"
    tensors = _write(source)
    out = import_gguf(source, tmp_path / "release", progress=SILENT)

    config = json.loads((out / "config.json").read_text())
    assert (config["hidden_size"], config["num_key_value_heads"], config["dtype"]) == (HIDDEN, KV_HEADS, "bfloat16")
    assert (out / "tokenizer.json").exists()
    assert "message['content']" in (out / "chat_template.jinja").read_text()
    weights = load_file(out / "model.safetensors")
    down = weights["model.layers.1.mlp.down_proj.weight"].float().numpy()
    # Q8_0 keeps 8 bits and bf16 keeps 8: values of about 1 come back within about 1 %.
    assert np.abs(down - tensors["blk.1.ffn_down.weight"]).max() < 0.04
    assert np.abs(down - tensors["blk.0.ffn_down.weight"]).max() > 1


def test_nothing_is_drawn_and_progress_is_told(source: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    told = list[tuple[str, float, float]]()

    class Told(Progress):
        def update(self, text: str, done: float = 0.0, total: float = 0.0) -> None:
            told.append((text, done, total))
    import_gguf(source, tmp_path / "release", progress=Told())
    tensors = len(_tensors())
    assert ("dequantising", tensors - 1, tensors) in told
    assert "%" not in capfd.readouterr().err


def test_manifest_states_digests_and_where_the_weights_are_from(source: Path, tmp_path: Path) -> None:
    out = import_gguf(source, tmp_path / "release")
    manifest = json.loads((out / MANIFEST).read_text())
    files = {path.name: path.read_bytes() for path in out.iterdir() if path.name != MANIFEST}
    assert manifest["files"] == {
        name: {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()} for name, data in files.items()}
    assert manifest["provenance"] == (
        f"dequantised from GGUF Q8_0 of tiny.gguf, sha256 {hashlib.sha256(source.read_bytes()).hexdigest()}"
        ": not the original bf16 weights")
    assert {path.stat().st_mode & 0o777 for path in out.iterdir()} == {0o644}
    assert out.stat().st_mode & 0o777 == 0o755


def test_header_counts_tensor_types(source: Path) -> None:
    header = read_header(source)
    assert (header.architecture, header.parts) == ("llama", 1)
    assert header.tensor_types == {"Q8_0": 1 + 7 * LAYERS, "F32": 1 + 2 * LAYERS}


def _nothing_left(folder: Path, *known: Path) -> None:
    assert sorted(folder.iterdir()) == sorted(known)


def test_another_file_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "other.gguf"
    other.write_bytes(b"PK\x03\x04" + bytes(100))
    with pytest.raises(ReleaseError, match=r"other.gguf is not a GGUF file"):
        import_gguf(other, tmp_path / "out")
    with pytest.raises(ReleaseError, match=r"cannot read .*absent.gguf: No such file"):
        import_gguf(tmp_path / "absent.gguf", tmp_path / "out")
    _nothing_left(tmp_path, other)


@pytest.mark.parametrize("keep", [6, 30, 400, -1000, -1])
def test_a_file_cut_short_is_refused(source: Path, tmp_path: Path, keep: int) -> None:
    source.write_bytes(source.read_bytes()[:keep])
    with pytest.raises(ReleaseError, match=r"tiny.gguf is damaged or cut short"):
        import_gguf(source, tmp_path / "out")
    _nothing_left(tmp_path, source)


def test_an_unknown_architecture_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "odd.gguf"
    _write(source, architecture="unheard")
    with pytest.raises(ReleaseError, match=r"cannot convert odd.gguf \(unheard\).*not supported"):
        import_gguf(source, tmp_path / "out")
    _nothing_left(tmp_path, source)


def test_one_part_of_several_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "part.gguf"
    _write(source, parts=3)
    with pytest.raises(ReleaseError, match=r"part.gguf is one of 3 parts"):
        import_gguf(source, tmp_path / "out")


def test_a_folder_in_use_is_left_alone(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine").write_text("keep")
    with pytest.raises(UsageError, match="not an empty folder"):
        import_gguf(source, out)
    assert [path.name for path in out.iterdir()] == ["mine"]


def test_an_empty_folder_is_filled(source: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    assert (import_gguf(source, tmp_path / "out") / "config.json").exists()
    _nothing_left(tmp_path, source, tmp_path / "out")


def test_a_disk_that_cannot_take_the_weights_leaves_nothing(source: Path, tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(StoreError, match=r"cannot write .*out: "):
            import_gguf(source, tmp_path / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    _nothing_left(tmp_path, source)


def test_an_interruption_leaves_nothing(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dayzero.runtime import gguf as module

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "_seal", interrupt)
    with pytest.raises(KeyboardInterrupt):
        import_gguf(source, tmp_path / "out")
    _nothing_left(tmp_path, source)
