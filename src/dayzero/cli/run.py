"""The verb that runs a release, for `check` or to see what it says."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dayzero.errors import UsageError

from .app import app
from .options import (
    AsJson,
    Force,
    Layouts,
    NewTokens,
    PromptFile,
    Prompts,
    Release,
    Runs,
    Seed,
    Trust,
    advanced,
    layouts_of,
    made,
    options_of,
    prompts_of,
    show,
)

if TYPE_CHECKING:
    from dayzero.schema import Layout

_CPU = "cpu"
PlanFile = Annotated[Path | None, typer.Option(
    "--plan", help="Run as this plan says: a file of dayzero plan --json, or a run directory.")]
Backend = Annotated[str, typer.Option("--backend", help="Devices to compute on: see dayzero backend list.")]
Streaming = Annotated[bool, typer.Option("--stream", help="Only generate, and show tokens as they come.")]
Dtype = Annotated[str | None, typer.Option("--dtype", help="With --stream: bf16, f16 or f32.")]
HostMemory = Annotated[str | None, typer.Option(
    "--host-memory", help="With --stream: most memory of a rank, like 1.5GB; the rest stays in the files.")]
DeviceMemory = Annotated[str | None, typer.Option(
    "--device-memory", help="With --stream: most weights on a device, likewise.")]
Keep = Annotated[str | None, typer.Option(
    "--keep", help="With --stream: weights in memory as values, or stored: as in the files, decoded when needed.")]
Verify = Annotated[bool, typer.Option(
    "--verify", help="With --stream: compare the weight files with their stated SHA-256 while they are read.")]
Partial = Annotated[bool, typer.Option(
    "--partial", help="With --stream: run the first layers where the files of the others are missing.")]
Spares = Annotated[int, typer.Option(
    "--spares", min=0, help="With --stream: processes that wait to replace a rank that dies or hangs.")]
Temperature = Annotated[float, typer.Option(
    "--temperature", min=0, help="With --stream: what logits are divided by to draw a token; 0: the likeliest.")]
TopK = Annotated[int, typer.Option("--top-k", min=0, help="With --stream: draw from so many likeliest; 0: from all.")]
TopP = Annotated[float, typer.Option(
    "--top-p", max=1, help="With --stream: draw from the likeliest that together have this probability, above 0.")]
ReleaseSampling = Annotated[bool, typer.Option(
    "--release-sampling", help="With --stream: draw as the release's generation_config.json says.")]
Samples = Annotated[int, typer.Option("--samples", min=1, help="With --stream: texts for each prompt.")]
StopTexts = Annotated[list[str] | None, typer.Option(
    "--stop", help="With --stream: text that ends an answer and is no part of it; may be repeated.")]
StopTokens = Annotated[list[int] | None, typer.Option(
    "--stop-token", min=0, help="With --stream: token id that ends an answer; may be repeated.")]
Timeline = Annotated[Path | None, typer.Option("--timeline", help="With --stream: write a Perfetto trace.")]


@app.command()
def run(
    release: Release, target: Annotated[Path | None, typer.Option("--target", "-t", help="target.toml.")] = None,
    plan: PlanFile = None, layout: Layouts = None, backend: Backend = _CPU, prompt: Prompts = None,
    prompts: PromptFile = None, max_new_tokens: NewTokens = 32, seed: Seed = 0, runs: Runs = Path("runs"),
    force: Force = False, as_json: AsJson = False, stream: Streaming = False, dtype: Dtype = None,
    trust_remote_code: Trust = False, host_memory: HostMemory = None, device_memory: DeviceMemory = None,
    keep: Keep = None, verify: Verify = False, partial: Partial = False, spares: Spares = 0, timeline: Timeline = None,
    temperature: Temperature = 0.0, top_k: TopK = 0, top_p: TopP = 1.0, release_sampling: ReleaseSampling = False,
    samples: Samples = 1, stop: StopTexts = None, stop_token: StopTokens = None,
) -> None:
    """Run the release on this machine, sharded by a plan or by --layout."""
    layouts, texts = layouts_of(layout), prompts_of(prompt, prompts)
    if stream:
        from .streamed import Streamed, streamed

        if target is not None:
            raise UsageError("--stream takes no target: it runs on this machine", "leave --target out")
        streamed(Streamed(
            release=release, plan=plan, layouts=layouts, backend=backend, prompts=texts, max_new_tokens=max_new_tokens,
            seed=seed, runs=runs, dtype=dtype, own=trust_remote_code, host_memory=host_memory,
            device_memory=device_memory, keep=keep, verify=verify, partial=partial, spares=spares,
            timeline=timeline, as_json=as_json, sampling=(temperature, top_k, top_p), released=release_sampling,
            samples=samples, stop=tuple(stop or ()), stop_tokens=tuple(stop_token or ())))
        return
    if only := [name for name, given in {
            "--dtype": dtype, "--trust-remote-code": trust_remote_code, "--host-memory": host_memory,
            "--device-memory": device_memory, "--keep": keep, "--verify": verify, "--partial": partial,
            "--spares": spares, "--timeline": timeline, "--temperature": temperature, "--top-k": top_k,
            "--top-p": top_p < 1, "--release-sampling": release_sampling, "--samples": samples > 1, "--stop": stop,
            "--stop-token": stop_token,
    }.items() if given]:
        raise UsageError(f"{only[0]} is for texts only", "add --stream")
    _for_check(release, target, plan, layouts, runs, force, as_json,
               prompts=texts, max_new_tokens=max_new_tokens, seed=seed, backend=backend)


def _for_check(release: str, target: Path | None, plan: Path | None, layouts: tuple[Layout, ...] | None,
               runs: Path, force: bool, as_json: bool, **chosen: object) -> None:
    """All that `check` needs, in the run directory."""
    from dayzero.backends import backends
    from dayzero.resolve import local_target
    from dayzero.schema import RunRecord
    from dayzero.stages.run import overview, to_contract

    backends().get(str(chosen["backend"]))  # before anything is measured
    if plan is not None:
        from dayzero.plan_file import chosen_plan, read_plan

        layouts = (chosen_plan(read_plan(plan), layouts or ()).layout,)
    options = options_of(layouts=layouts, plan=str(plan) if plan else None, **chosen)
    job = advanced(release, target or local_target(layouts or (), runs), runs, options, upto="run", force=force)
    record = made(job, "run", RunRecord)
    show(lambda: to_contract(record), lambda: overview(record), as_json)
