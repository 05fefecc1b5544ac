"""The verb that plans: every layout, and what if the target were another one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dayzero.errors import UsageError

from .app import app
from .options import (
    TARGET_HELP,
    AsJson,
    Force,
    Release,
    Runs,
    advanced,
    console,
    finish,
    layouts_of,
    made,
    options_of,
    seconds_of,
    show,
)

if TYPE_CHECKING:
    from dayzero.schema import Layout

Device = Annotated[str | None, typer.Option("--device", help="What if: another device, see dayzero devices.")]
Devices = Annotated[int | None, typer.Option("--devices", min=1, help="What if: so many devices in a node.")]
Nodes = Annotated[int | None, typer.Option("--nodes", min=1, help="What if: so many nodes.")]
Concurrency = Annotated[int | None, typer.Option(
    "--concurrency", min=1, help="What if: so many sequences are served together.")]
Input = Annotated[int | None, typer.Option("--input-tokens", min=1, help="What if: prompts of so many tokens.")]
Output = Annotated[int | None, typer.Option("--output-tokens", min=1, help="What if: answers of so many tokens.")]
Arrivals = Annotated[float | None, typer.Option(
    "--arrival-rate", help="What if: so many requests arrive in a second, at random times.")]
Precisions = Annotated[list[str] | None, typer.Option(
    "--precision", help="What if: weights in this precision, like fp8; may be repeated.")]
Calibrated = Annotated[Path | None, typer.Option(
    "--calibration", help="What if: times as your own measurements say, a file of dayzero calibrate.")]
Ttft = Annotated[str | None, typer.Option("--ttft", help="Limit: time to the first token, like 2s or 500ms.")]
Tpot = Annotated[str | None, typer.Option("--tpot", help="Limit: time for each further token, like 15ms.")]
Budget = Annotated[int | None, typer.Option("--budget", min=1, help="Limit: devices that may be taken.")]
Layouts = Annotated[list[str] | None, typer.Option(
    "--layout", help="What if: only this layout, like tp=8,pp=2; may be repeated.")]
Explain = Annotated[list[str] | None, typer.Option(
    "--explain", help="Why this layout is where it is, like tp=8,pp=2; may be repeated.")]
Pareto = Annotated[bool, typer.Option(
    "--pareto", help="The layouts and loads that no other beats in throughput and latency.")]
Operators = Annotated[str | None, typer.Option(
    "--operators", metavar="fitted|measured", help="Whether measured tables shape the times (docs/measured.md).")]
Smallest = Annotated[bool, typer.Option("--smallest", help="The smallest cluster that works.")]


@app.command()
def plan(
    release: Release, target: Annotated[Path | None, typer.Option("--target", "-t", help=TARGET_HELP)] = None,
    runs: Runs = Path("runs"), top: Annotated[int, typer.Option(min=1, help="Layouts to keep.")] = 20,
    explain: Explain = None, pareto: Pareto = False, smallest: Smallest = False, layout: Layouts = None,
    device: Device = None, devices: Devices = None, nodes: Nodes = None, budget: Budget = None,
    concurrency: Concurrency = None, input_tokens: Input = None, output_tokens: Output = None,
    arrival_rate: Arrivals = None, precision: Precisions = None, operators: Operators = None,
    calibration: Calibrated = None, ttft: Ttft = None, tpot: Tpot = None, force: Force = False, as_json: AsJson = False,
) -> None:
    """Which layouts are legal, which fit, and how fast each should be; what if the target were another one."""
    from dayzero.schema import Plan
    from dayzero.stages.plan import explanation, overview, to_contract
    from dayzero.what_if import what_if

    if target is None and device is None:
        raise UsageError("Missing option '--target' / '-t'.", "give a target.toml, or at least --device")
    _serving_only(target, {"--concurrency": concurrency, "--output-tokens": output_tokens, "--precision": precision,
                           "--arrival-rate": arrival_rate, "--ttft": ttft, "--tpot": tpot, "--pareto": pareto,
                           "--calibration": calibration, "--operators": operators})
    wanted = layouts_of(explain) or ()
    changes = _stated({
        "cluster.device": device, "cluster.devices_per_node": devices, "cluster.nodes": nodes, "limits.devices": budget,
        "workload.concurrency": concurrency, "workload.input_tokens": input_tokens,
        "workload.output_tokens": output_tokens, "workload.arrival_rate": arrival_rate,
        "workload.precisions": precision, "operators.times": operators,
        "limits.ttft_s": seconds_of("--ttft", ttft), "limits.tpot_s": seconds_of("--tpot", tpot),
        "layout": _tables(layouts_of(layout)), "calibration": _calibration(calibration)})
    file = what_if(target, changes, runs)
    job = advanced(release, file, runs, options_of(top=top, explain=wanted, smallest=smallest), upto="plan",
                   force=force)
    found = made(job, "plan", Plan)
    show(lambda: to_contract(found, explain=wanted),
         lambda: explanation(found, wanted) if wanted else overview(found, front=pareto), as_json)
    if changes:
        console(stderr=True).print(f"target: {file}", markup=False, soft_wrap=True)
    finish(not (found.trained or (found.best and found.best.within)))


def _serving_only(target: Path | None, given: dict[str, Any]) -> None:
    """Raise UsageError for an option that says nothing of training, where the target trains."""
    from dayzero.resolve import check_target

    workload = check_target(target).workload if target else None
    if workload and workload.kind == "train":
        for name, value in given.items():
            if value:
                raise UsageError(f"{name} is about serving, and {target} is about training",
                                 'leave it out, or take a target whose workload has kind = "serve"')


def _stated(changes: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in changes.items() if value is not None}


def _calibration(file: Path | None) -> dict[str, Any] | None:
    """What the file says, for the target. Raises UsageError for a file that is none."""
    if file is None:
        return None
    import msgspec

    from dayzero.calibrate import calibration

    return _stated(msgspec.to_builtins(calibration(file)))


def _tables(layouts: tuple[Layout, ...] | None) -> list[dict[str, int]] | None:
    """Layouts as [[layout]] has them: the degrees that are not the usual ones."""
    from dayzero.schema import Layout
    from dayzero.schema.layout import DEGREES

    usual, names = Layout(), (*DEGREES, "attention_tp")
    return [{name: getattr(one, name) for name in names if getattr(one, name) != getattr(usual, name)} or {"tp": 1}
            for one in layouts] if layouts else None
