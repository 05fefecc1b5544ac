"""Which expert should make room for another: policies replayed on traces of routing.

    python benchmarks/bench_tier_policies.py [--release FOLDER --tokens 64]

Synthetic traces of 8 layers with 64 experts, 4 chosen: uniform, Zipf's law with exponent 0.6 and 1, and topics (of each
choice, 70 % follow a popularity that changes every 64 tokens). With --release also the routing of a mixture of experts
on random prompts. Figures are shares of needs that find their expert in memory, after the first 20 tokens. `fixed`
knows the frequencies of the trace itself, `best` its future: neither can be had in a run.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np

from dayzero.runtime.tiers.policies import Fading, Fixed, Frequent, Policy, Recent
from dayzero.runtime.tiers.replay import Trace, best, replay

LAYERS, EXPERTS, CHOSEN, TOPIC, SKIP = 8, 64, 4, 64, 20
POLICIES: dict[str, Callable[[], Policy]] = {
    "recent": Recent, "frequent": Frequent, "fading 4": lambda: Fading(4), "fading 32": lambda: Fading(32),
    "fading 128": lambda: Fading(128)}


def synthetic(tokens: int, exponent: float, topical: float) -> Trace:
    """Routing by Zipf's law, `topical` of it by a popularity of its own for every TOPIC tokens."""
    random = np.random.default_rng(0)
    weights = 1 / np.arange(1, EXPERTS + 1) ** exponent
    weights /= weights.sum()
    lasting = [weights[random.permutation(EXPERTS)] for _ in range(LAYERS)]
    trace = []
    for token in range(tokens):
        if token % TOPIC == 0:
            topic = [weights[random.permutation(EXPERTS)] for _ in range(LAYERS)]
        trace.append([random.choice(EXPERTS, CHOSEN, replace=False, p=(1 - topical) * a + topical * b).tolist()
                      for a, b in zip(lasting, topic, strict=True)])
    return trace


def recorded(folder: Path, tokens: int) -> Trace:
    """Of a release with stacked experts, greedy decoding after random prompts of one token each."""
    import torch

    from dayzero.runtime.building import blueprint
    from dayzero.runtime.loading import Checkpoint
    from dayzero.runtime.tiers import Tiers

    model = blueprint(folder, "bf16").model
    with Checkpoint(folder, model) as checkpoint, torch.no_grad():
        tiers = Tiers(model, checkpoint, {})
        for name, tensor in checkpoint.read({name: {} for name in checkpoint.names if name not in tiers.owned}).items():
            path, _, leaf = name.rpartition(".")
            module = model.get_submodule(path)
            if leaf in module._parameters:
                module._parameters[leaf] = torch.nn.Parameter(tensor, requires_grad=False)
            else:
                module._buffers[leaf] = tensor
        tiers.install()
        torch.manual_seed(0)
        model.generate(torch.randint(100, (1, 1)), max_new_tokens=tokens, min_new_tokens=tokens, do_sample=True)
        trace = tiers.trace
        tiers.close()
    return trace


def line(name: str, trace: Trace, share: float) -> str:
    counts = Counter((number, key) for layers in trace for number, keys in enumerate(layers) for key in keys)
    experts = max(key for _, key in counts) + 1
    slots = max(len(trace[0][0]) + 1, round(share * experts * len(trace[0])))
    figures = {each: replay(trace, make(), slots, SKIP) for each, make in POLICIES.items()}
    figures |= {"fixed": replay(trace, Fixed(counts), slots, SKIP), "best": best(trace, slots, SKIP)}
    return f"{name:14} {share:5.0%}  " + "  ".join(f"{value:10.3f}" for value in figures.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--release", type=Path)
    parser.add_argument("--tokens", type=int, default=64)
    arguments = parser.parse_args()
    traces = {"uniform": synthetic(300, 0, 0), "zipf 0.6": synthetic(300, 0.6, 0), "zipf 1": synthetic(300, 1, 0),
              "topics": synthetic(300, 1, 0.7)}
    if arguments.release:
        traces["recorded"] = recorded(arguments.release, arguments.tokens)
    print(f"{'trace':14} {'slots':>5}  " + "  ".join(f"{name:>10}" for name in (*POLICIES, "fixed", "best")))
    for name, trace in traces.items():
        for share in (0.1, 0.2, 0.4):
            print(line(name, trace, share), flush=True)


if __name__ == "__main__":
    main()
