"""Fully populated Results, made by hand: a dense model that was planned, run and checked on this machine (`adapted`), a
trillion-parameter card that can only be planned (`planned`), and the same on too small a cluster (`too_large`)."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec

from dayzero.schema import (
    Attention,
    Bundle,
    Candidate,
    Change,
    Check,
    Cluster,
    Column,
    ControlFlow,
    Device,
    Divergence,
    Engine,
    Estimate,
    Family,
    FeedForward,
    FileEntry,
    Finding,
    Findings,
    Layer,
    LayerError,
    LayerKind,
    Layout,
    LayoutRun,
    Link,
    ModelSpec,
    ModuleNode,
    OpCall,
    OpGraph,
    Output,
    Phase,
    Plan,
    Point,
    RankRecord,
    Rejected,
    Release,
    Results,
    RunRecord,
    Size,
    StageResult,
    Target,
    TensorGroup,
    TensorTable,
    Verdict,
    WeightFamily,
    Workload,
)
from dayzero.schema.target import EngineRequest

MIB, GIB = 2**20, 2**30


def adapted() -> Results:
    """SmolLM2-135M on two ranks of this machine: every stage done."""
    release, target = small_release(), local_target()
    plan = small_plan(target)
    stages = tuple(StageResult(name=name, status="done", reason="", hint="", seconds=seconds) for name, seconds in
                   {"read": 0.8, "preflight": 0.02, "trace": 6.1, "plan": 0.05, "run": 41.0, "check": 33.0,
                    "emit": 0.01, "report": 0.4}.items())
    return Results(stages=stages, target=target, release=release, findings=small_findings(), graph=small_graph(),
                   plan=plan, record=small_record(), verdict=small_verdict(), bundle=small_bundle(),
                   environment={"dayzero": "0.1.0", "python": "3.11.7", "torch": "2.13.0"})


def planned() -> Results:
    """Kimi-K3 from a card on 2 x 8 H200: read, preflight and plan, nothing that needs weights."""
    target = large_target(nodes=2)
    layout = Layout(tp=8, pp=2)
    best = large_candidate(layout, target, fits=True)
    second = large_candidate(Layout(tp=8, dp=2, ep=16), target, fits=True, slower=1.3)
    plan = Plan(candidates=(best, second, large_candidate(Layout(tp=8), target, fits=False)), rejected=(
        Rejected(layout=Layout(tp=16, pp=1), rule="shard-heads", message="96 heads are not whole on 16 ranks"),),
        evaluated=41, seconds=0.2, workload={"input_tokens": 4096, "output_tokens": 512, "concurrency": 64},
        notes=("The network between the nodes is not overlapped with compute.",), **answers(best))
    bundle = Bundle(files={"plan.json": "{}"}, commands={
        "vllm, node 0": "vllm serve MODEL_FOLDER_OR_HUB_ID --tensor-parallel-size 8 --node-rank 0",
        "vllm, node 1": "vllm serve MODEL_FOLDER_OR_HUB_ID --tensor-parallel-size 8 --node-rank 1 --headless"},
        notes=("The release is a card without files.",))
    return Results(stages=_card_stages(), target=target, release=large_release(), findings=Findings(findings=(), facts={
        "params_total": 2_779_931_644_160}), plan=plan, bundle=bundle, environment={"dayzero": "0.1.0"})


def answers(best: Candidate) -> dict[str, Any]:
    """What the plan of `planned` says beside its layouts."""
    points = tuple(Point(
        layout=Layout(tp=16) if load < 8 else best.layout, concurrency=load, ttft_s=0.5 + 0.02 * load,
        tpot_s=0.009 + 0.0002 * load, tokens_per_s_per_device=load / (0.009 + 0.0002 * load) / 16,
        best_for=("tpot", "ttft"), within=load <= 64) for load in (1, 2, 4, 8, 16, 32, 64, 96))
    before = {"tpot_s": 0.021, "ttft_s": 0.9, "tokens_per_s": 64 / 0.021}
    slower = {"tpot_s": 0.024, "ttft_s": 0.95, "tokens_per_s": 64 / 0.024}
    faster = {"tpot_s": 0.019, "ttft_s": 0.88, "tokens_per_s": 64 / 0.019}
    changes = tuple(Change(resource=resource, factor=factor, before=before, after=after, first=first, lead=lead)
                    for resource in ("memory bandwidth", "link bandwidth", "matrix rate")
                    for factor, after, first, lead in ((0.8, slower, Layout(tp=8, dp=2, ep=16), 0.03),
                                                       (1.2, faster, best.layout, 0.0)))
    return {"front": points, "sensitivity": changes,
            "summary": (f"{best.layout.text}: First of 2 that fit.",
                        "Next is tp=8 ep=16 dp=2: loses 23%: experts 10 ms -> 13 ms a token."),
            "families": (Family(degrees={"tp": 16}, rule="shard-heads", message="96 heads are not whole on 16 ranks",
                                layouts=1, example=Layout(tp=16)),),
            "smallest": (Size(works="fits", nodes=2, devices_per_node=8, layout=best.layout, figures=before),)}


def too_large() -> Results:
    """Kimi-K3 on 1 x 8 H200: nothing fits."""
    target = large_target(nodes=1)
    plan = Plan(candidates=(large_candidate(Layout(tp=8), target, fits=False),), rejected=(), evaluated=7, seconds=0.1,
                workload={"input_tokens": 4096, "output_tokens": 512, "concurrency": 64})
    finding = Finding(rule="memory-weights", severity="error", subject="weights",
                      message="weights need 1.42 TiB, the 8 devices have 1.01 TiB", hint="take 16 devices")
    stages = tuple(stage for stage in _card_stages() if stage.name != "emit")
    return Results(stages=stages, target=target, release=large_release(),
                   findings=Findings(findings=(finding,), facts={}), plan=plan)


def _card_stages() -> tuple[StageResult, ...]:
    def stage(name: str, reason: str = "", hint: str = "", seconds: float = 0.1) -> StageResult:
        return StageResult(name=name, status="not_possible" if reason else "done", reason=reason, hint=hint,
                           seconds=seconds)

    return (stage("read", seconds=2.1), stage("preflight"),
            stage("trace", "the release brings no code that can be traced", "add --trust-remote-code"), stage("plan"),
            stage("run", "no weights", "put the shards into the folder"), stage("check", "no run"), stage("emit"))


# --- the small model -----------------------------------------------------------------------------------------------


def small_release() -> Release:
    """Shapes of SmolLM2-135M-Instruct: 30 layers, 9 heads, 3 KV heads, tied embeddings."""
    layers = tuple(range(30))
    families = (
        _family("embedding", "model.embed_tokens.weight", (49152, 576), "vocab", 0, ()),
        _family("attention.q", "model.layers.{L}.self_attn.q_proj.weight", (576, 576), "heads", 0, layers),
        _family("attention.k", "model.layers.{L}.self_attn.k_proj.weight", (192, 576), "kv_heads", 0, layers),
        _family("attention.v", "model.layers.{L}.self_attn.v_proj.weight", (192, 576), "kv_heads", 0, layers),
        _family("attention.o", "model.layers.{L}.self_attn.o_proj.weight", (576, 576), "heads", 1, layers),
        _family("mlp.gate", "model.layers.{L}.mlp.gate_proj.weight", (1536, 576), "width", 0, layers),
        _family("mlp.up", "model.layers.{L}.mlp.up_proj.weight", (1536, 576), "width", 0, layers),
        _family("mlp.down", "model.layers.{L}.mlp.down_proj.weight", (576, 1536), "width", 1, layers),
        _family("norm", "model.layers.{L}.input_layernorm.weight", (576,), "replicated", None, layers),
        _family("norm", "model.layers.{L}.post_attention_layernorm.weight", (576,), "replicated", None, layers),
        _family("norm", "model.norm.weight", (576,), "replicated", None, ()),
    )
    parameters = sum(family.parameters for family in families)
    model = ModelSpec(
        name="SmolLM2-135M", architectures=("LlamaForCausalLM",), model_type="llama", hidden_size=576,
        vocab_size=49152, max_positions=8192, tied_embeddings=True,
        layers=tuple(Layer(attention="full", feed_forward="dense") for _ in layers),
        attentions={"full": Attention(kind="full", heads=9, kv_heads=3, head_dim=64, v_head_dim=64)},
        feed_forwards={"dense": FeedForward(kind="dense", width=1536, input_width=576)}, families=families,
        mtp_layers=0, parameters=parameters, parameters_text=parameters,
        parameters_active={"all": parameters, "no_embedding": parameters, "no_embedding_no_head": 106203456},
        checkpoint_bytes=parameters * 2, dtype="bf16", provenance="weights dequantised from GGUF Q4_1 to bf16",
        sources={"hidden_size": "config.json: hidden_size", "parameters": "tensor headers"}, unknowns=("pad_strategy",))
    entries = tuple(FileEntry(name=f"model-0000{n}-of-00003.safetensors", size=size, origin="folder", role="weights",
                              sha256=f"{n}" * 64, expected_sha256=None)
                    for n, size in enumerate((99_614_720, 99_876_864, 69_570_000), 1))
    return Release(
        name="SmolLM2-135M", origin="demo/SmolLM2-135M", has_weights=True, root="demo/SmolLM2-135M", index=None,
        files=(FileEntry(name="config.json", size=720, origin="folder", role="config"), *entries), missing_shards=(),
        tensors=_table(families), config={"model_type": "llama", "hidden_size": 576}, model=model)


def _family(role: str, pattern: str, shape: tuple[int, ...], split: str, axis: int | None, layers: tuple[int, ...],
            **changes: object) -> WeightFamily:
    count, elements = len(layers) or 1, 1
    for width in shape:
        elements *= width
    family = WeightFamily(role=role, pattern=pattern, shape=shape, dtype="BF16", scheme="bf16", split=split, axis=axis,
                          count=count, layers=layers, experts=0, parameters=count * elements,
                          stored_bytes=count * elements * 2)
    return msgspec.structs.replace(family, **changes)


def _table(families: tuple[WeightFamily, ...]) -> TensorTable:
    return TensorTable(files=("model.safetensors",), groups=tuple(
        TensorGroup(pattern=family.pattern, shape=family.shape, dtype=family.dtype,
                    layer=Column(family.layers or (-1,)), expert=Column([-1] * family.count),
                    file=Column([0] * family.count), start=Column([0] * family.count))
        for family in families if not family.experts))


def local_target() -> Target:
    """Two ranks of a small host, measured."""
    device = Device(
        name="local", vendor="host", arch="x86_64", memory_bytes=8 * GIB, memory_bandwidth=1.1e10,
        flops={"bf16": 4.1e10, "f32": 3.2e10}, efficiency=1.0, measured=True, op_overhead=9e-6, process_bytes=410 * MIB,
        links=(Link(name="loopback", devices=0, bandwidth=1.9e9, latency=7e-5, source="measured, n=20"),),
        sources={"memory_bandwidth": "measured, n=5, spread 3 %", "flops": "measured, n=5, spread 2 %"})
    return Target(
        name="local", cluster=Cluster(device=device, devices_per_node=2, nodes=1, memory_utilization=0.9, network=None),
        engine=_engine("any"), layouts=(), partial=False,
        workload=Workload(kind="serve", input_tokens=64, output_tokens=32, concurrency=2, max_batched_tokens=2048))


def _engine(name: str) -> Engine:
    return Engine(name=name, version="", facts=EngineRequest(name=name), kv_replication=True, redundant_experts=None,
                  head_padding="none", block_padding=False, vision="replicated")


def estimate(value: float, unit: str, spread: float = 0.25) -> Estimate:
    """An estimate with a symmetric interval."""
    return Estimate(value=value, low=value * (1 - spread), high=value * (1 + spread), unit=unit,
                    source="roofline from measured rates")


def small_plan(target: Target) -> Plan:
    """pp=2, dp=2 and one device fit."""
    candidates = (
        _small_candidate(target, Layout(pp=2), ((0, 14), (14, 30)), 1.0),
        _small_candidate(target, Layout(dp=2), ((0, 30),), 0.93),
        _small_candidate(target, Layout(), ((0, 30),), 0.55),
    )
    rejected = (Rejected(layout=Layout(tp=2), rule="shard-heads", message="9 attention heads do not divide by 2"),)
    return Plan(candidates=candidates, rejected=rejected, evaluated=4, seconds=0.03,
                workload={"input_tokens": 64, "output_tokens": 32, "concurrency": 2})


def _small_candidate(target: Target, layout: Layout, stages: tuple[tuple[int, int], ...], speed: float) -> Candidate:
    def needs(start: int, end: int) -> dict[str, int]:
        ends = 56_623_104 * ((start == 0) + (end == 30 and start > 0))
        return {"weights": ends + (end - start) * 7_080_192, "kv_cache": 5 * MIB, "activations": 30 * MIB,
                "logits": 12 * MIB if end == 30 else 0, "process": 410 * MIB, "workspace": 24 * MIB}

    per_stage = tuple(needs(start, end) for start, end in stages)
    tpot = 0.024 / speed
    return Candidate(
        layout=layout, fits=True, stages=stages, bytes_per_device=max(per_stage, key=lambda need: sum(need.values())),
        usable_bytes=target.cluster.usable_bytes, bytes_per_stage=per_stage, max_sequences=900,
        ttft_s=estimate(0.21, "s"), tpot_s=estimate(tpot, "s"), tokens_per_s=estimate(2 / tpot, "tokens/s"),
        decode_seconds={"linear": tpot * 0.7, "attention": tpot * 0.1, "communication": tpot * 0.05 * (layout.pp - 1),
                        "overhead": tpot * 0.2},
        prefill_seconds={"linear": 0.16, "attention": 0.03, "overhead": 0.02}, limits=("memory bandwidth",),
        explanation=f"{layout.text}: each rank reads its weights once for each token.")


def small_findings() -> Findings:
    """A warning and two infos."""
    return Findings(findings=(
        Finding(rule="shard-heads", severity="warning", subject="num_attention_heads",
                message="9 attention heads are not whole on 2 ranks: tp 2 is not possible", hint="use tp 1 or 3",
                facts={"value": 9, "tp": 2}),
        Finding(rule="config-alias", severity="info", subject="torch_dtype", message="read as dtype", hint=""),
        Finding(rule="kv-layout", severity="info", subject="cache", message="23040 bytes for each token", hint=""),
    ), facts={"params_total": 134_515_008, "valid_tp": [1], "kv_bytes_per_token": 23040})


_MODULES = {  # module -> (op, kind, weight shape)
    "input_layernorm": ("aten.rms_norm", "norm", (576,)), "self_attn.q_proj": ("aten.mm", "linear", (576, 576)),
    "self_attn.k_proj": ("aten.mm", "linear", (192, 576)), "self_attn.v_proj": ("aten.mm", "linear", (192, 576)),
    "self_attn": ("aten.scaled_dot_product_attention", "attention", (64,)),
    "self_attn.o_proj": ("aten.mm", "linear", (576, 576)), "mlp.gate_proj": ("aten.mm", "linear", (1536, 576)),
    "mlp.up_proj": ("aten.mm", "linear", (1536, 576)), "mlp.act_fn": ("aten.silu", "elementwise", (1536,)),
    "mlp.down_proj": ("aten.mm", "linear", (576, 1536)),
}  # fmt: skip


def small_graph(layers: int = 30) -> OpGraph:
    """Ten operators a layer in both phases, and the head."""
    calls = [call for phase, tokens in (("prefill", 64), ("decode", 1))
             for call in (*(_call(f"model.layers.{layer}.{module}", phase, tokens) for layer in range(layers)
                            for module in _MODULES), _call("lm_head", phase, tokens))]
    phases = {name: Phase(name=name, batch=1, tokens=tokens, context=64, operators=len(calls) // 2,
                          flops=sum(call.flops for call in calls if call.phase == name),
                          bytes=sum(call.bytes for call in calls if call.phase == name))
              for name, tokens in (("prefill", 64), ("decode", 1))}
    return OpGraph(
        parameters=134_515_008, seconds=5.9, phases=phases, operators=tuple(calls),
        modules=(ModuleNode(path="", type="LlamaForCausalLM", parameters=0),),
        control_flow=(ControlFlow(file="models/llama/modeling_llama.py", line=412, kind="item", assumed="True", times=2,
                                  executed=True),),
        missing=(), layer_kinds=(LayerKind(kind="full+dense", layers=tuple(range(layers))),),
        source="transformers 5.24 LlamaForCausalLM")


def _call(module: str, phase: str, tokens: int) -> OpCall:
    name = module.split(".", 3)[-1]
    op, kind, shape = _MODULES.get(name, ("aten.mm", "linear", (49152, 576)))
    wide = shape[0] * (shape[1] if len(shape) > 1 else 1)
    return OpCall(op=op, module=module, module_type="Linear", kind=kind, count=1, dtype="bf16",
                  inputs=((1, tokens, shape[-1]), shape), outputs=((1, tokens, shape[0]),), flops=2 * tokens * wide,
                  bytes=2 * (wide + tokens * (shape[0] + shape[-1])), phase=phase)


def small_record() -> RunRecord:
    """pp=2 and dp=2 were run; memory within 5 %, speed within 30 % of the plan."""
    return RunRecord(runs=(_run(Layout(pp=2), ((0, 14), (14, 30)), 75.0), _run(Layout(dp=2), ((0, 30), (0, 30)), 94.0)),
                     prompts=("What is the capital of France?", "Write one sentence about the sea."), max_new_tokens=32,
                     environment={"torch": "2.13.0+cpu", "processor": "2 cores"})


def _run(layout: Layout, layers: tuple[tuple[int, int], ...], speed: float) -> LayoutRun:
    ranks = tuple(RankRecord(
        rank=rank, device="cpu", layers=tuple(range(start, end)), parameters=80_000_000, weight_bytes=160_000_000,
        peak_private_bytes=640 * MIB + rank * 40 * MIB, base_private_bytes=400 * MIB, load_seconds=1.2, exit_code=0)
        for rank, (start, end) in enumerate(layers))
    outputs = (
        Output(prompt="What is the capital of France?", tokens=(504, 3575, 282, 4649, 314, 7042, 30, 2),
               text="The capital of France is Paris.", finish="stop",
               margins=(9.1, 4.2, 7.7, 8.0, 6.1, 0.07, 5.0, 9.9)),
        Output(prompt="Write one sentence about the sea.", tokens=(504, 3724, 314), text="The sea is wide.",
               finish="length", margins=(3.0, 2.0, 1.0)))
    return LayoutRun(layout=layout, world_size=layout.world_size, dtype="bf16", seed=0, ranks=ranks, outputs=outputs,
                     ttft_s=0.26, tpot_s=0.026, tpot_all_s=(0.025, 0.026, 0.027), tokens_per_s=speed,
                     repeat_identical=True, dump=f"6-run/{layout.text}", events=())


def small_verdict(*, passed: bool = True) -> Verdict:
    """Errors that grow with depth, below a tolerance; or a jump at layer 17."""
    layers = []
    for run in ("pp=2", "dp=2"):
        for index in range(32):
            place = "embedding" if index == 0 else "logits" if index == 31 else f"layers.{index - 1}"
            error = 0.0 if index == 0 else 0.002 + 0.0003 * index
            error = error if passed or index < 18 else 0.7
            layers.append(LayerError(layout=run, place=place, relative_l2=error, max_abs=error * 12,
                                     cosine=1 - error**2 / 2, tolerance=0.02))
    source = "3 x the error of the same model in bf16 in one process"
    checks = tuple(Check(name=f"{run}: {what}", tolerance=tolerance, source=source, observed=observed,
                         passed=observed <= tolerance, detail=detail)
                   for run in ("pp=2", "dp=2") for what, tolerance, observed, detail in (
                       ("logits, relative L2", 0.02, 0.0113 if passed else 0.7, ""),
                       ("generated tokens", 0, 0, "40 of 40 equal"), ("same seed twice", 0, 0, "bit-identical")))
    first = None if passed else Divergence(layout="pp=2", place="layers.17", layer=17, relative_l2=0.7, before=0.0074)
    return Verdict(checks=checks, layers=tuple(layers), first_divergence=first, reference="one process, fp32")


def small_bundle() -> Bundle:
    """A command with its note."""
    return Bundle(files={"plan.json": "{}\n", "launch-vllm.sh": "#!/usr/bin/env bash\n", "manifest.json": "{}\n"},
                  commands={"vllm": "VLLM_PP_LAYER_PARTITION=14,16 vllm serve demo/SmolLM2-135M "
                                    "--tensor-parallel-size 1 --pipeline-parallel-size 2 --max-model-len 256"},
                  notes=("On a CPU it takes the engine's CPU build.",))


# --- the large model -----------------------------------------------------------------------------------------------


def large_release() -> Release:
    """Facts of Kimi-K3: 93 layers (24 latent, 69 linear attention), 896 experts of which 16 are used."""
    attentions = {"latent": Attention(kind="latent", heads=96, kv_heads=1, head_dim=192, v_head_dim=128, q_rank=1536,
                                      kv_rank=512, rope_dim=64),
                  "linear": Attention(kind="linear", heads=96, kv_heads=96, head_dim=128, v_head_dim=128,
                                      conv_kernel=4)}
    experts = FeedForward(kind="experts", width=3072, input_width=3584, experts=896, top_k=16, shared_experts=2,
                          shared_width=6144)
    layers = tuple(Layer(attention="latent" if index % 4 == 3 or index == 92 else "linear",
                         feed_forward="experts" if index else "dense") for index in range(93))
    moe = tuple(range(1, 93))
    families = (
        _family("embedding", "language_model.model.embed_tokens.weight", (163840, 7168), "vocab", 0, ()),
        _family("experts.up", "language_model.model.layers.{L}.mlp.experts.{E}.up_proj.weight_packed", (3072, 1792),
                "experts", 0, moe, dtype="U8", scheme="mxfp4", experts=896, count=92 * 896,
                parameters=92 * 896 * 3072 * 3584, stored_bytes=92 * 896 * 3072 * 1792),
        _family("router", "language_model.model.layers.{L}.mlp.gate.weight", (896, 7168), "replicated", None, moe),
    )
    model = ModelSpec(
        name="kimi-k3", architectures=("KimiK3ForConditionalGeneration",), model_type="kimi_k3", hidden_size=7168,
        vocab_size=163840, max_positions=1048576, tied_embeddings=False, layers=layers, attentions=attentions,
        feed_forwards={"experts": experts, "dense": FeedForward(kind="dense", width=33792, input_width=7168)},
        families=families, mtp_layers=0, parameters=2_779_931_644_160, parameters_text=2_779_484_000_000,
        parameters_active={"all": 105_364_000_000, "no_embedding": 104_190_000_000,
                           "no_embedding_no_head": 103_015_000_000},
        checkpoint_bytes=1_560_860_324_864, dtype="bf16", sources={"layers": "card: layers"})
    return Release(name="kimi-k3", origin="examples/cards/kimi-k3.toml", has_weights=False, files=(), root=None,
                   tensors=_table(families), index=None, missing_shards=(), model=model,
                   config={"model_type": "kimi_k3", "auto_map": {"AutoConfig": "configuration_kimi_k3.KimiK3Config"}})


def large_target(nodes: int, engine: str = "vllm") -> Target:
    """Nodes of 8 H200: 141 GB each, figures from the datasheet."""
    device = Device(
        name="h200", vendor="nvidia", arch="sm_90", memory_bytes=141_000_000_000, memory_bandwidth=4.8e12,
        flops={"bf16": 9.89e14, "fp8": 1.979e15}, fp8="e4m3fn", sources={"memory_bandwidth": "datasheet"},
        links=(Link(name="nvlink", devices=8, bandwidth=4.5e11, latency=3e-6, source="datasheet"),))
    network = Link(name="infiniband", devices=0, bandwidth=5e10, latency=5e-6, source="target file")
    return Target(
        name=f"h200-{nodes}x8", engine=_engine(engine), layouts=(), partial=False,
        cluster=Cluster(device=device, devices_per_node=8, nodes=nodes, memory_utilization=0.9, network=network),
        workload=Workload(kind="serve", input_tokens=4096, output_tokens=512, concurrency=64, max_batched_tokens=8192))


def large_candidate(layout: Layout, target: Target, *, fits: bool, slower: float = 1.0) -> Candidate:
    """93 layers over the stages; weights divided by the world size."""
    cuts = [93 * stage // layout.pp for stage in range(layout.pp + 1)]
    needs = {"weights": 1_560_860_324_864 // layout.world_size, "kv_cache": 4 * GIB, "state": 3 * GIB,
             "activations": 2 * GIB, "logits": GIB, "process": 2 * GIB}
    return Candidate(
        layout=layout, fits=fits, stages=tuple(itertools.pairwise(cuts)), bytes_per_device=needs,
        usable_bytes=target.cluster.usable_bytes, bytes_per_stage=(needs,) * layout.pp, max_sequences=96,
        ttft_s=estimate(0.9 * slower, "s", 0.4), tpot_s=estimate(0.021 * slower, "s", 0.4),
        tokens_per_s=estimate(64 / (0.021 * slower), "tokens/s", 0.4),
        decode_seconds={"experts": 0.010 * slower, "attention": 0.005, "communication": 0.006 * slower},
        prefill_seconds={"experts": 0.6 * slower, "attention": 0.2, "communication": 0.1},
        limits=("memory bandwidth", "overlap of communication is not modelled"),
        explanation="Tensor parallelism stays inside a node; only activations cross the network.")
