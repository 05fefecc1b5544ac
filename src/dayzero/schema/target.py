"""What a user asks for (target.toml, `...Request`) and what it comes to (Engine, Target)."""

from __future__ import annotations

import datetime
from typing import Any, Literal

import msgspec

from .base import Noun, Request
from .calibration import Calibration
from .cluster import ClusterRequest
from .hardware import Cluster
from .layout import Layout
from .workload import Limits, Workload


class ReleaseRequest(Request, frozen=True, kw_only=True):
    """[release]"""

    partial: bool = False
    """The folder holds a sample of the tensors: absence proves nothing unless index or `declares` names the tensor."""


class Branch(Request, frozen=True, kw_only=True):
    """One kernel branch of an engine and what it needs."""

    op: str
    """Operator."""
    when: str
    """Condition on the workload, such as `tokens > 54272`."""
    needs: str
    """Condition on the model, such as `experts power_of_two`."""


class Declared(Request, frozen=True, kw_only=True):
    """A parameter that an engine's model code allocates."""

    name: str
    """Parameter name."""
    shape: list[int]
    """Its shape."""
    dtype: str
    """Its dtype."""


class QuantBackend(Request, frozen=True, kw_only=True):
    """A quantised-matmul implementation of an engine."""

    name: str
    """Name of the backend."""
    op: str
    """Scheme that it computes."""
    archs: list[str]
    """Device architectures that it runs on."""
    default: bool = False
    """Whether it is taken when nothing is asked for."""


class EngineRequest(Request, frozen=True, kw_only=True):
    """[engine]: a profile's name and facts that override or extend it. Absent means: as the profile says."""

    name: str | None = None
    """Profile: one of `dayzero engines`, or the path (from the target's folder) of a .toml file of your own."""
    version: str | None = None
    """Version of the engine that is installed."""
    schemes: list[str] | None = None
    """Quantisation schemes it can run; absent: all."""
    limits: dict[str, int] | None = None
    """Compiled limits, such as experts = 512."""
    branches: list[Branch] | None = None
    """Kernel branches and what each needs."""
    kv_replication: bool | None = None
    """Can KV heads be replicated when tp exceeds them? Absent: yes."""
    redundant_experts: bool | None = None
    """Can it hold spare experts when ep does not divide the experts? Absent: unknown."""
    attention_groups: bool | None = None
    """Can groups of ranks within tp have attention of their own, each with its own sequences? Absent: no."""
    context_parallel: bool | None = None
    """Can ranks within tp that would hold copies of a cache share its tokens instead? Absent: no."""
    head_padding: Literal["none", "multiple_of_tp"] | None = None
    """How it pads attention heads."""
    block_padding: bool | None = None
    """Can it pad or split unevenly to whole quantisation blocks? Absent: no."""
    vision: Literal["replicated", "split"] | None = None
    """How a vision tower is placed under tp; absent: replicated."""
    fuses: list[list[str]] | None = None
    """Parameters that it concatenates."""
    fuse_suffixes: list[str] | None = None
    """Suffixes of the parameters that are concatenated."""
    declares: list[Declared] | None = None
    """Parameters that its model code allocates (a partial list is allowed)."""
    modules: list[str] | None = None
    """Module names at run time, against which exclude lists are matched."""
    quant_from: Literal["config", "file"] | None = None
    """Which one decides how a module is built when config and file disagree."""
    renames: list[dict[str, str]] | None = None
    """What its loader does to checkpoint names before filters."""
    filters: list[dict[str, str]] | None = None
    """Names that its loader drops."""
    expects: list[str] | None = None
    """Names that its loader knows."""
    on_unknown: Literal["error", "skip", "warn"] | None = None
    """What its loader does with other names."""
    config_reads: dict[str, list[str]] | None = None
    """Config keys that it reads, by module role."""
    config_defaults: dict[str, Any] | None = None
    """Values that it takes for absent keys."""
    rope_layout: dict[str, str] | None = None
    """Rotary layout by module."""
    param_dtype: dict[str, str] | None = None
    """dtype in which it holds a parameter."""
    unified_pages: bool | None = None
    """Are KV pages sized alike for all layers?"""
    scale_rounding: Literal["floor", "ceil"] | None = None
    """How it rounds the groups that it allocates for a width."""
    speculative: Literal["mtp", "none"] | None = None
    """Speculative decoding; absent: none."""
    backends: list[QuantBackend] | None = None
    """Quantised-matmul implementations."""
    fp8_conversion: bool | None = None
    """Can it re-encode e4m3 weights for a device of the other dialect? Absent: no."""
    transformers: str | None = None
    """Version of transformers where it runs."""
    supported_since: dict[str, str] | None = None
    """model_type or class of the architecture -> first version that supports it; "": older than anyone looked."""
    removed_in: dict[str, str] | None = None
    """Dotted name -> version that removed it."""


class LayoutRequest(Request, frozen=True, kw_only=True):
    """[layout], or one of a list of them."""

    tp: int = 1
    """Tensor parallel."""
    pp: int = 1
    """Pipeline parallel."""
    ep: int = 1
    """Expert parallel."""
    dp: int = 1
    """Data parallel."""
    cp: int = 1
    """Context parallel."""
    attention_tp: int | None = None
    """Ranks that share attention; absent: tp."""

    def resolve(self) -> Layout:
        """The layout. Raises LayoutError."""
        fields = {name: value for name, value in msgspec.structs.asdict(self).items() if value is not None}
        return Layout(**fields)


class WorkloadRequest(Request, frozen=True, kw_only=True):
    """[workload]"""

    kind: Literal["serve", "train"] = "serve"
    """serve or train."""
    input_tokens: int = 1024
    """Tokens of a prompt, or of a training sequence."""
    output_tokens: int = 256
    """Tokens generated for each prompt."""
    concurrency: int = 1
    """Sequences that must fit at full length together."""
    max_batched_tokens: int = 8192
    """Most prompt tokens in one prefill step."""
    global_batch: int | None = None
    """Sequences of a training step (kind = "train"); required there."""
    scheme: str = ""
    """Precision of the matrix products in training, such as fp8; absent: the dtype of the model."""
    total_tokens: int | None = None
    """Tokens that are to be trained on; absent: the plan gives days for a trillion."""
    arrival_rate: float | None = None
    """Requests that arrive in a second, at random times; absent: `concurrency` of them are under way at any time."""
    prefix_hit: float = 0.0
    """Share of the prompt's tokens that are found in the cache, from 0 to below 1."""
    draft_tokens: int = 0
    """Tokens that speculative decoding proposes before each pass; needs acceptance_length."""
    acceptance_length: float | None = None
    """Tokens that a pass of speculative decoding gives on average, from 1 to draft_tokens + 1."""
    expert_imbalance: float = 1.0
    """Tokens of the rank whose experts have most, in terms of the mean of all ranks, at least 1."""
    precisions: list[str] = []
    """Precisions of the weights to compare, such as bf16, fp8, int4; absent: the release as it is."""


class LimitsRequest(Request, frozen=True, kw_only=True):
    """[limits]: what a layout has to keep to."""

    ttft_s: float | None = None
    """Most seconds to the first token, on average."""
    tpot_s: float | None = None
    """Most seconds for each further token, on average."""
    devices: int | None = None
    """Most devices that may be taken."""


class Waiver(Request, frozen=True, kw_only=True):
    """[[waivers]]: a finding that is accepted for a while. Every report prints it; no verdict counts it."""

    rule: str
    """Name of the rule."""
    reason: str
    """Why it is accepted."""
    expires: datetime.date
    """Last day on which it is accepted, like 2026-12-31; after it the finding counts again."""
    subject: str = "*"
    """Subjects of the findings, as a pattern in which `*` stands for any text; absent: all of the rule."""


class OperatorsRequest(Request, frozen=True, kw_only=True):
    """[operators]: where a plan takes the times of operators from."""

    times: Literal["fitted", "measured"] = "fitted"
    """fitted: shares of the stated rates that such devices reach; measured: those, shaped by tables of the extra
    `measured` or of the folder that DAYZERO_MEASURED names, and by your own (docs/measured.md)."""
    tables: list[str] = []
    """Files of your own tables, from the target's folder; they come before all others."""


class TargetRequest(Request, frozen=True, kw_only=True):
    """A target.toml."""

    cluster: ClusterRequest
    """[cluster]"""
    release: ReleaseRequest = ReleaseRequest()
    """[release]"""
    engine: EngineRequest = EngineRequest()
    """[engine]"""
    layout: LayoutRequest | list[LayoutRequest] | None = None
    """[layout] or [[layout]]: layouts to check; absent: the plan searches."""
    workload: WorkloadRequest | None = None
    """[workload]"""
    limits: LimitsRequest = LimitsRequest()
    """[limits]"""
    operators: OperatorsRequest = OperatorsRequest()
    """[operators]"""
    calibration: Calibration | None = None
    """[calibration]: what `dayzero calibrate` wrote; times take its factors."""
    waivers: list[Waiver] = []
    """[[waivers]]: findings of preflight that are accepted."""


class Engine(Noun, frozen=True, kw_only=True):
    """An engine profile with the target's overrides applied; nothing is left open but what nobody knows (None)."""

    name: str
    """Profile; `any` when the target names none."""
    version: str
    """Version that the target states; empty when it states none."""
    read_at: str = ""
    """Version at which the profile's facts were read; empty: unknown, or they are true of any."""
    read_from: str = ""
    """Oldest version that the profile's `supported_since` was made from; empty: not known."""
    complete: tuple[str, ...] = ()
    """Facts of the profile that list everything there is at that version."""
    facts: EngineRequest
    """All stated facts: the profile's, overridden by the target's."""
    kv_replication: bool
    """KV heads can be replicated when tp exceeds them."""
    redundant_experts: bool | None
    """Spare experts can be held when ep does not divide the experts; None: unknown."""
    head_padding: str
    """none or multiple_of_tp."""
    block_padding: bool
    """Widths can be padded to whole quantisation blocks."""
    vision: str
    """replicated or split."""
    sources: dict[str, str] = msgspec.field(default_factory=dict)
    """For each fact of the profile: where it is from."""


class Operators(Noun, frozen=True, kw_only=True):
    """Where a plan takes the times of operators from."""

    times: str = "fitted"
    """fitted or measured."""
    tables: tuple[str, ...] = ()
    """Paths of the user's own tables."""


class Target(Noun, frozen=True, kw_only=True):
    """What a release is adapted to, with every default filled in."""

    name: str
    """Name of the target file, without its ending."""
    cluster: Cluster
    """Devices and links."""
    engine: Engine
    """The engine."""
    workload: Workload
    """The workload."""
    limits: Limits = Limits()
    """What a layout has to keep to."""
    operators: Operators = Operators()
    """Where times of operators are from."""
    layouts: tuple[Layout, ...]
    """Layouts asked for; empty: search."""
    partial: bool
    """The release is a sample of the tensors."""
    waivers: tuple[Waiver, ...] = ()
    """Findings of preflight that are accepted."""
    calibration: Calibration | None = None
    """What the user's own measurements say about the figures that times are predicted with; None: nothing."""
