"""vLLM: a planned layout as `vllm serve` commands. The options that exist are data: vllm_flags.toml."""

from __future__ import annotations

import functools
import json
import math
from importlib.resources import files

import msgspec

from dayzero.schema import Candidate, Layout, Release, Target
from dayzero.units import format_bytes

from .base import Launch, comment, shell

HEAD = "HEAD_NODE_ADDRESS"
MODEL = "MODEL_FOLDER_OR_HUB_ID"
SCRIPT = "launch-vllm.sh"
MASTER_PORT = 29501
HOST = "127.0.0.1"
"""Where it listens: for the node itself alone, as the server asks nobody for a password."""
_GIB = 2**30


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """vllm_flags.toml."""

    engine: str
    """Name of the engine."""
    version: str
    """Version that the options were read from."""
    source: str
    """Where they were read."""
    dtypes: dict[str, str]
    """Scheme -> value of --dtype."""
    cpu: dict[str, list[str]]
    """archs: device architectures that need the CPU build."""
    flags: dict[str, list[str]]
    """allowed: options that exist."""


@functools.cache
def profile() -> Profile:
    """The engine's options as shipped."""
    return msgspec.toml.decode(files(__package__).joinpath("vllm_flags.toml").read_bytes(), type=Profile)


class Vllm:
    """The emit target."""

    name = "vllm"

    @property
    def version(self) -> str:
        """Version whose options were checked."""
        return profile().version

    def launch(self, release: Release, candidate: Candidate, target: Target, comments: tuple[str, ...] = ()) -> Launch:
        """`vllm serve` for one layout: one command, or one for each node when it takes several."""
        moe = any(kind.experts for kind in release.model.feed_forwards.values())
        layout, whole_replicas = _per_server(candidate.layout, moe)
        nodes = math.ceil(layout.world_size / target.cluster.devices_per_node)
        refusal = _refusal(layout, nodes, target) or _outside(candidate)
        if refusal:
            return Launch(commands={}, files={}, notes=(refusal,))
        words, environment = _words(release, candidate, layout, target), _environment(candidate)
        notes = (*whole_replicas, *_notes(release, candidate, layout, target))
        header = [line for text in (*comments, *(f"Note: {note}" for note in notes)) for line in comment(text)]
        script = _script(header, environment, words, nodes)
        return Launch(commands=_commands(environment, words, nodes), files={SCRIPT: script}, notes=notes,
                      foremost=whole_replicas, what={SCRIPT: "starts the engine with the planned layout"})


VLLM = Vllm()


def _per_server(layout: Layout, moe: bool) -> tuple[Layout, tuple[str, ...]]:
    """The layout that one server takes. With --data-parallel-size this engine always spreads the experts over all
    tp*dp ranks (FusedMoEParallelConfig.make), so that replicas with experts of their own are servers of their own."""
    if not (moe and layout.dp > 1 and layout.ep == 1):
        return layout, ()
    single = msgspec.structs.replace(layout, dp=1)
    note = (f"The plan has {layout.dp} replicas that each hold all experts; with --data-parallel-size vLLM would share "
            f"the experts among them. The command starts one replica ({single.text}): start it {layout.dp} times, "
            "each on its own devices and port, behind a load balancer.")
    return single, (note,)


def _refusal(layout: Layout, nodes: int, target: Target) -> str:
    """Why the engine has no such layout; empty when it has."""
    stage, per_node = layout.tp * layout.dp, target.cluster.devices_per_node
    if layout.attention_degree != layout.tp:
        return (f"attention_tp={layout.attention_degree} differs from tp={layout.tp}, and vLLM splits "
                "attention over all tp ranks; it has replicas of attention only as data parallel ranks (dp with ep)")
    if layout.ep not in (1, stage):
        return (f"ep={layout.ep}, but vLLM spreads experts over all tp*dp = {stage} ranks or over none of them")
    if layout.tp % layout.cp:
        return (f"vLLM takes context parallel ranks from the tp ranks, and cp={layout.cp} does not divide "
                f"tp={layout.tp}")
    local, replica = layout.world_size // nodes, layout.tp * layout.pp
    if layout.world_size % nodes or max(local, replica) % min(local, replica):
        return f"{layout.world_size} ranks ({layout.text}) do not lie evenly on nodes of {per_node} devices"
    return ""


def _outside(candidate: Candidate) -> str:
    """Why the engine cannot keep outside of the devices what the plan keeps there; empty when it can."""
    kept = candidate.offload
    if kept and (kept.disk_bytes or "cache" in kept.shares):
        return ("vLLM keeps weights in the host's memory, and the plan also needs "
                f"{'the disk' if kept.disk_bytes else 'cache there'}")
    return ""


def _words(release: Release, candidate: Candidate, layout: Layout, target: Target) -> list[str]:
    """The command without node rank and addresses."""
    model, revision = _model(release)
    degrees = [("--tensor-parallel-size", layout.tp), ("--pipeline-parallel-size", layout.pp),
               ("--data-parallel-size", layout.dp), ("--decode-context-parallel-size", layout.cp)]
    words = ["vllm", "serve", model, *(["--revision", revision] if revision else [])]
    for flag, degree in degrees:
        words += [flag, str(degree)] if degree > 1 or flag == "--tensor-parallel-size" else []
    words += ["--enable-expert-parallel"] if layout.ep > 1 else []
    words += ["--dtype", profile().dtypes.get(release.model.dtype, "auto")]
    sequences = _sequences(candidate, target)
    batched = max(target.workload.max_batched_tokens, sequences)
    words += ["--max-model-len", str(_length(release, target)), "--max-num-seqs", str(sequences),
              "--max-num-batched-tokens", str(batched),
              "--gpu-memory-utilization", f"{target.cluster.memory_utilization:g}"]
    words += ["--enable-prefix-caching"] if target.workload.prefix_hit else []
    if candidate.offload:
        words += ["--cpu-offload-gb", str(math.ceil(candidate.offload.host_bytes / _GIB))]
    if _proposes(release, target):
        words += ["--speculative-config", json.dumps(
            {"method": "mtp", "num_speculative_tokens": target.workload.draft_tokens})]
    words += ["--trust-remote-code"] if _own_code(release) else []
    return [*words, "--host", HOST, "--port", "8000"]


def _proposes(release: Release, target: Target) -> bool:
    """Whether the release's own layers propose tokens."""
    workload = target.workload
    return bool(workload.draft_tokens and release.model.mtp_layers and target.engine.facts.speculative == "mtp")


def _model(release: Release) -> tuple[str, str]:
    """What the engine is told to load, and the hub revision if there is one."""
    if release.hub:
        name, _, revision = release.hub.partition("@")
        return name, revision
    return (release.root or MODEL), ""


def _own_code(release: Release) -> bool:
    return any("auto_map" in part for part in (release.config, *release.config.values()) if isinstance(part, dict))


def _length(release: Release, target: Target) -> int:
    """Tokens of a sequence, rounded up to a multiple of 256, within what the model can take."""
    rounded = math.ceil(target.workload.length / 256) * 256
    return min(rounded, release.model.max_positions or rounded)


def _sequences(candidate: Candidate, target: Target) -> int:
    """Sequences at a time for each data parallel rank (the option counts for one): as many as the workload wants, or as
    random arrivals almost never exceed (four standard deviations of Poisson), and the plan has room for."""
    wanted = math.ceil(target.workload.concurrency / candidate.layout.dp)
    if candidate.arrivals:
        mean = candidate.arrivals.sequences / candidate.layout.dp
        wanted = max(wanted, math.ceil(mean + 4 * math.sqrt(mean) + 1))
    room = candidate.max_sequences // candidate.layout.dp
    return max(1, min(wanted, room))


def _environment(candidate: Candidate) -> list[str]:
    """Layers of each pipeline stage as planned; by itself the engine divides them in its own way."""
    counts = ",".join(str(end - start) for start, end in candidate.stages)
    return [f"VLLM_PP_LAYER_PARTITION={counts}"] if candidate.layout.pp > 1 else []


def _notes(release: Release, candidate: Candidate, layout: Layout, target: Target) -> list[str]:
    notes = [*_needed(release, target), _bounds(candidate, target)]
    if not release.hub and not release.root:
        notes.append(f"The release is a card without files: put the folder or hub id of the weights for {MODEL}.")
    elif not release.hub and not release.has_weights:
        notes.append("The folder of the release holds no weights: point the command to one that does.")
    if _own_code(release):
        notes.append("--trust-remote-code: the config names the release's own Python (auto_map), which the engine will "
                     "run with your rights. Read that code first; drop the option if this version knows the model.")
    stated = target.engine.version
    if target.engine.name == "vllm" and stated and stated != profile().version:
        notes.append(f"Options were checked against vLLM {profile().version}, not against {stated}.")
    if target.workload.length > (release.model.max_positions or target.workload.length):
        notes.append(f"The workload's {target.workload.length} tokens exceed the {release.model.max_positions} that "
                     "the config allows; --max-model-len is the latter.")
    if _sequences(candidate, target) * candidate.layout.dp < target.workload.concurrency:
        notes.append(f"The workload asks for {target.workload.concurrency} sequences at a time; there is room for "
                     f"{candidate.max_sequences} of full length, the others wait.")
    if target.workload.draft_tokens and not _proposes(release, target):
        notes.append(f"The plan counts on {target.workload.draft_tokens} proposed tokens a pass: say with "
                     "--speculative-config what proposes them.")
    if layout.cp > 1:
        notes.append("Context parallelism is for decoding only: ranks of the tp group share the KV cache.")
    return [*notes, *_cpu_notes(candidate, layout, target)]


def _needed(release: Release, target: Target) -> list[str]:
    """Since which version the engine has the model, where the target states none that would have been compared."""
    engine, since = target.engine, target.engine.facts.supported_since or {}
    known = [name for name in release.model.architectures if since.get(name)]
    return [] if engine.version else [f"{name} needs {engine.name} {since[name]} or newer." for name in known[:1]]


def _bounds(candidate: Candidate, target: Target) -> str:
    return (f"--max-model-len and --max-num-seqs are those of the workload ({target.workload.text}), and there is room "
            f"for {candidate.max_sequences:,} such sequences; it listens on {HOST}, for its own node alone. Options "
            "that are given to the script win over its own.")


def _cpu_notes(candidate: Candidate, layout: Layout, target: Target) -> list[str]:
    """What the CPU build needs beyond the options. Behaviour seen with the wheel named in vllm_flags.toml."""
    if target.cluster.device.arch.lower() not in profile().cpu["archs"]:
        return []
    cache = sum(candidate.bytes_per_device.get(cause, 0) for cause in ("kv_cache", "state"))
    notes = [f"The options are those for GPUs. On a CPU it takes the engine's CPU build and VLLM_CPU_KVCACHE_SPACE="
             f"{max(1, math.ceil(cache / _GIB))} (GiB of cache for each rank; the plan needs {format_bytes(cache)})."]
    if layout.world_size > 1:
        notes.append("Several ranks on one CPU socket also need VLLM_CPU_OMP_THREADS_BIND=nobind.")
    return notes


def _node_words(nodes: int, rank: str, head: str) -> list[str]:
    return ["--nnodes", str(nodes), "--node-rank", rank, "--master-addr", head, "--master-port", str(MASTER_PORT)]


def _commands(environment: list[str], words: list[str], nodes: int) -> dict[str, str]:
    prefix = " ".join(environment) + " " if environment else ""
    if nodes == 1:
        return {"vllm": prefix + shell(words)}
    commands = {}
    for rank in range(nodes):
        headless = ["--headless"] if rank else []
        command = shell([*words, *_node_words(nodes, str(rank), HEAD), *headless])
        commands[f"vllm, node {rank}"] = prefix + command
    return commands


def _script(header: list[str], environment: list[str], words: list[str], nodes: int) -> str:
    """A bash script; more options can be appended to its call and win over those inside."""
    lines = ["#!/usr/bin/env bash", *header, "set -euo pipefail", ""]
    lines += [f"export {variable}" for variable in environment]
    options = _option_lines(words[3:])
    if nodes > 1:
        lines += [f'usage="usage: {HEAD}=<address of node 0> $0 <rank of this node, 0 to {nodes - 1}> [options]"',
                  f': "${{{HEAD}:?$usage}}"', 'NODE_RANK="${1:?$usage}"', "shift", "ROLE=()",
                  'if [[ "$NODE_RANK" != 0 ]]; then ROLE=(--headless); fi', ""]
        options += [f"--nnodes {nodes}", '--node-rank "$NODE_RANK"', f'--master-addr "${HEAD}"',
                    f"--master-port {MASTER_PORT}", '"${ROLE[@]}"']
    command = [f"exec {shell(words[:3])}", *options, '"$@"']
    return "\n".join([*lines, " \\\n  ".join(command)]) + "\n"


def _option_lines(words: list[str]) -> list[str]:
    """Option words as quoted text, one option with its value a line."""
    lines: list[list[str]] = []
    for word in words:
        if word.startswith("--"):
            lines.append([word])
        else:
            lines[-1].append(word)
    return [shell(line) for line in lines]
