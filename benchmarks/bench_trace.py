"""What five ways find in the code of five models without weights, each in a process of its own: time, memory,
operators, whose module is known, places where control flow depends on data, and what fails.

    python benchmarks/bench_trace.py [--tokens 4096] [--limit 300]      prints a table in Markdown

The models are built from the library's config classes, so that nothing is downloaded; a way whose package is not
installed is skipped and says so.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

MODELS: dict[str, dict[str, Any]] = {
    "deepseek_v3": {},
    "gpt_oss": {},
    "qwen3_next": {},
    "llama": {"hidden_size": 16384, "intermediate_size": 53248, "num_hidden_layers": 126, "num_attention_heads": 128,
              "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072},
    "kimi_linear": {},
}
"""model_type -> what differs from its class defaults (those are DeepSeek-V3, gpt-oss-120b, Qwen3-Next-80B and
Kimi-Linear-48B; the third is Llama-3.1-405B)."""
NEEDS = {"calflops": "calflops", "accelerate estimate": "accelerate"}


def config_of(name: str) -> Any:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    return CONFIG_MAPPING[name](**MODELS[name])


def built(name: str) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config_of(name), dtype=torch.bfloat16).eval()


def tokens_of(count: int) -> Any:
    import torch

    return torch.empty((1, count), dtype=torch.int64, device="meta")


def dayzero(name: str, tokens: int) -> dict[str, Any]:
    from transformers import AutoModelForCausalLM

    from dayzero.stages.read import read
    from dayzero.stages.trace import trace

    config = config_of(name)
    stated = config.to_dict() | {"architectures": [AutoModelForCausalLM._model_mapping[type(config)].__name__]}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(stated, default=str))
        graph = trace(read(folder), tokens=tokens, context=tokens)
    prefill = graph.phases["prefill"]
    own = [row for row in graph.operators if row.phase == "prefill"]
    named = sum(row.count for row in own if row.module)
    return {"operators": prefill.operators, "named": named, "sites": len(graph.control_flow), "flops": prefill.flops,
            "note": f"and decode; {len(graph.operations)} operations; {len(graph.missing)} missing"}


def export(name: str, tokens: int) -> dict[str, Any]:
    import torch

    model = built(name)
    program = torch.export.export(model, (), {"input_ids": tokens_of(tokens), "use_cache": False}, strict=False)
    nodes = [node for node in program.graph.nodes if node.op == "call_function"]
    return {"operators": len(nodes), "named": sum(bool(node.meta.get("nn_module_stack")) for node in nodes)}


def flop_counter(name: str, tokens: int) -> dict[str, Any]:
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    model, counter = built(name), FlopCounterMode(display=False)
    with torch.inference_mode(), counter:
        model(input_ids=tokens_of(tokens), use_cache=False)
    return {"flops": counter.get_total_flops()}


def calflops(name: str, tokens: int) -> dict[str, Any]:
    import torch
    from calflops import calculate_flops

    model = built(name)
    model.config.use_cache = False  # it takes nothing but tensors
    with torch.inference_mode():
        flops, _, _ = calculate_flops(model=model, kwargs={"input_ids": tokens_of(tokens)}, print_results=False,
                                      output_as_string=False)
    return {"flops": flops}


def estimate(name: str, tokens: int) -> dict[str, Any]:
    from accelerate.utils import calculate_maximum_sizes

    size, _ = calculate_maximum_sizes(built(name))
    return {"note": f"{size / 2**30:.0f} GiB of weights, no operators"}


WAYS = {"dayzero": dayzero, "torch.export": export, "FlopCounterMode": flop_counter, "calflops": calflops,
        "accelerate estimate": estimate}  # fmt: skip


def child(way: str, name: str, tokens: int) -> None:
    start = time.perf_counter()
    try:
        found = WAYS[way](name, tokens)
    except Exception as error:  # what fails, and how, is what is measured
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        found = {"failed": f"{type(error).__name__}: {lines[0][:90] if lines else ''}"}
    found["seconds"] = time.perf_counter() - start
    found["memory"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps(found))


def measured(way: str, name: str, tokens: int, limit: float) -> dict[str, Any]:
    if importlib.util.find_spec(NEEDS.get(way, "torch")) is None:
        return {"note": "skipped: not installed"}
    command = [sys.executable, __file__, "--child", way, name, "--tokens", str(tokens)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, env=environment)
    except subprocess.TimeoutExpired:
        return {"failed": f"longer than {limit:g} s"}
    lines = done.stdout.splitlines()
    return json.loads(lines[-1]) if lines and lines[-1].startswith("{") else {"failed": f"exit code {done.returncode}"}


def row(name: str, way: str, found: dict[str, Any]) -> str:
    operators = found.get("operators")
    share = f"{100 * found['named'] / operators:.1f} %" if operators else "-"
    cells = [name, way, f"{found['seconds']:.1f}" if "seconds" in found else "-",
             f"{found['memory'] / 2**20:.0f}" if "memory" in found else "-",
             f"{operators:,}" if operators else "-", share, f"{found['sites']}" if "sites" in found else "-",
             f"{found['flops'] / 1e12:.1f}" if "flops" in found else "-",
             f"FAILS: {found['failed']}" if "failed" in found else found.get("note", "")]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--limit", type=float, default=300.0)
    parser.add_argument("--child", nargs=2)
    given = parser.parse_args()
    if given.child:
        child(*given.child, given.tokens)
        return
    print("| model | way | seconds | MiB | operators | with module | sites | TFLOP | |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name in MODELS:
        for way in WAYS:
            print(row(name, way, measured(way, name, given.tokens, given.limit)), flush=True)


if __name__ == "__main__":
    main()
