"""Weights that stay as they are stored, beside weights that are decoded when they are loaded: memory and time.

    python benchmarks/bench_kept.py [--formats fp8 mxfp4 nvfp4 int4 gptq awq] [--layers 12] [--rounds 3] [--tokens 6]

For each format a dense release with random weights is written and deleted. Both ways run in processes of their own and
take turns. Told are the bytes of the weight files, the private memory that each takes at most above what its imports
take, both as a multiple of the files, whether the tokens are the same, and the time of a token as a multiple of that
with decoded weights. A product with a matrix reads 2 bytes a value of decoded weights, less of stored ones, but decodes
them first.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

HIDDEN, WIDTH, HEADS, KV, VOCABULARY = 2048, 5632, 16, 4, 4096
MODULES = {"self_attn.q_proj": (HIDDEN, HIDDEN), "self_attn.k_proj": (HIDDEN * KV // HEADS, HIDDEN),
           "self_attn.v_proj": (HIDDEN * KV // HEADS, HIDDEN), "self_attn.o_proj": (HIDDEN, HIDDEN),
           "mlp.gate_proj": (WIDTH, HIDDEN), "mlp.up_proj": (WIDTH, HIDDEN), "mlp.down_proj": (HIDDEN, WIDTH)}
CONFIGS = {
    "fp8": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    "mxfp4": {"quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized"},
    "nvfp4": {"quant_algo": "NVFP4", "group_size": 16},
    "int4": {"quant_method": "compressed-tensors", "format": "pack-quantized",
             "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int", "group_size": 128}}}},
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": 128},
    "awq": {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm"},
}  # fmt: skip
SCALE = 0.01


def codes(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)


def matrix(out: int, inp: int, form: str, generator: torch.Generator) -> dict[str, torch.Tensor]:
    """The tensors of a random matrix by the ends of their names; groups of 128 unless the format has its own."""
    def scales(*shape: int) -> torch.Tensor:
        return torch.rand(shape, generator=generator) * SCALE

    words, groups = codes((out, inp // 2), generator), inp // 128
    if form == "fp8":
        weight = (torch.randn(out, inp, generator=generator)).to(torch.float8_e4m3fn)
        return {"weight": weight, "weight_scale_inv": scales(-(-out // 128), -(-inp // 128)) * 4}
    if form == "mxfp4":
        return {"weight_packed": words, "weight_scale": codes((out, inp // 32), generator) % 3 + 119}
    if form == "nvfp4":
        return {"weight": words, "weight_scale": scales(out, inp // 16).mul(100).to(torch.float8_e4m3fn),
                "weight_scale_2": torch.tensor(SCALE)}
    if form == "int4":
        return {"weight_packed": words.view(torch.int32), "weight_scale": scales(out, groups).bfloat16(),
                "weight_shape": torch.tensor([out, inp])}
    packed = words.view(torch.int32)
    zeros = codes((groups, out // 2), generator).view(torch.int32)
    made = {"qweight": packed.view(inp // 8, out) if form == "gptq" else packed.view(inp, out // 8),
            "qzeros": zeros, "scales": scales(groups, out).half()}
    return made | ({"g_idx": (torch.arange(inp) // 128).int()} if form == "gptq" else {})


def write(folder: Path, form: str, layers: int) -> int:
    """The release; bytes of its weight files."""
    from safetensors.torch import save_file
    from transformers import LlamaConfig

    LlamaConfig(hidden_size=HIDDEN, intermediate_size=WIDTH, num_hidden_layers=layers, num_attention_heads=HEADS,
                num_key_value_heads=KV, vocab_size=VOCABULARY, dtype="bfloat16", architectures=["LlamaForCausalLM"],
                ).save_pretrained(folder)  # fmt: skip
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": CONFIGS[form]}))
    generator, index = torch.Generator().manual_seed(0), {}
    for layer in range(layers + 1):
        made: dict[str, torch.Tensor] = {}
        if layer == layers:
            table = torch.randn(VOCABULARY, HIDDEN, generator=generator).bfloat16()
            made = {"model.embed_tokens.weight": table, "lm_head.weight": table * 0.02,
                    "model.norm.weight": torch.ones(HIDDEN, dtype=torch.bfloat16)}
        for name, (out, inp) in MODULES.items() if layer < layers else ():
            parts = matrix(out, inp, form, generator)
            made |= {f"model.layers.{layer}.{name}.{end}": tensor.contiguous() for end, tensor in parts.items()}
        for name in ("input_layernorm", "post_attention_layernorm") if layer < layers else ():
            made[f"model.layers.{layer}.{name}.weight"] = torch.ones(HIDDEN, dtype=torch.bfloat16)
        save_file(made, folder / f"model-{layer:05d}.safetensors", metadata={"format": "pt"})
        index |= dict.fromkeys(made, f"model-{layer:05d}.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


def worker(folder: Path, keep: str, tokens: int) -> None:
    """Loads, then answers each line of standard input with a generation."""
    from transformers import DynamicCache

    from dayzero.runtime.memory import PeakSampler, release_unused
    from dayzero.runtime.rank import Rank
    from dayzero.runtime.sharding import Mesh
    from dayzero.schema import Budget, Layout

    torch.set_num_threads(1)
    Rank(folder, "bf16")
    release_unused()
    with PeakSampler(lambda: "") as sampler, torch.no_grad():
        rank = Rank(folder, "bf16", budget=Budget(keep=keep) if keep == "stored" else None, threads=2)
        rank.prepare(Layout(), 0)
        rank.join(Mesh(Layout(), 0))
        for line in sys.stdin:
            ids, cache, made, seconds = torch.arange(8)[None] + int(line), DynamicCache(), [], []
            for _ in range(tokens):
                began = time.perf_counter()
                ids = rank.model(input_ids=ids, cache=cache, use_cache=True).logits[:, -1:].argmax(-1)
                seconds.append(time.perf_counter() - began)
                made.append(int(ids))
            record = rank.tiers.statistics() if rank.tiers else None
            print(json.dumps({"tokens": made, "seconds": statistics.median(seconds[1:]),
                              "peak": sampler.peak - sampler.base,
                              "kept": record.kept if record else {},
                              "moved": record.stored_bytes / record.passes if record else 0}), flush=True)


class Process:
    """A worker."""

    def __init__(self, folder: Path, keep: str, tokens: int) -> None:
        self._process = subprocess.Popen([sys.executable, __file__, "--worker", keep, "--folder", str(folder),
                                          "--tokens", str(tokens)],
                                         stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, number: int) -> dict:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(f"{number}\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()


def compare(form: str, layers: int, rounds: int, tokens: int) -> None:
    with tempfile.TemporaryDirectory() as at:
        nbytes = write(Path(at), form, layers)
        ways = {keep: Process(Path(at), keep, tokens) for keep in ("values", "stored")}
        ratios, same = [], True
        for number in range(rounds):
            made = {keep: way.ask(number) for keep, way in ways.items()}
            ratios.append(made["stored"]["seconds"] / made["values"]["seconds"])
            same &= made["stored"]["tokens"] == made["values"]["tokens"]
        for way in ways.values():
            way.close()
    peaks = {keep: f"{each['peak'] / 1e6:.0f} MB = {each['peak'] / nbytes:.2f} x" for keep, each in made.items()}
    print(f"{form:6} files {nbytes / 1e6:.0f} MB; memory: stored {peaks['stored']}, values {peaks['values']}; same "
          f"tokens: {same}; a token moves {made['stored']['moved'] / 1e6:.0f} MB and takes "
          f"{statistics.median(ratios):.1f} x [{min(ratios):.1f}, {max(ratios):.1f}] of "
          f"{made['values']['seconds'] * 1000:.0f} ms; kept "
          f"{ {name: round(size / 1e6) for name, size in made['stored']['kept'].items()} } MB", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--formats", nargs="+", default=list(CONFIGS), choices=list(CONFIGS))
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=6)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        worker(arguments.folder, arguments.worker, arguments.tokens)
        return
    for form in arguments.formats:
        compare(form, arguments.layers, arguments.rounds, arguments.tokens)


if __name__ == "__main__":
    main()
