"""The nouns: what flows from stage to stage. Frozen, free of torch, and importing nothing above."""

from .base import SCHEMA_VERSION, Column, Noun, Request, digest, from_json, to_json
from .bundle import Bundle
from .estimate import Estimate
from .explanation import Bound, Change, Family, Point, Size
from .finding import Finding, Findings, Waived
from .graph import ControlFlow, LayerKind, ModuleNode, OpCall, Operation, OpGraph, Phase, StandIn
from .hardware import COLLECTIVES, Cluster, Device, Link, Reached
from .layout import Layout
from .model import Attention, FeedForward, Layer, ModelSpec, Rope, WeightFamily
from .plan import Candidate, Plan, Rejected, Trained
from .record import LayoutRun, Lost, Output, Overlap, RankRecord, RunRecord
from .release import FileEntry, Release, TensorGroup, TensorTable
from .results import Results, StageResult
from .sampling import Sampling
from .serving import Arrivals, Disaggregated, Offload, Variant
from .target import Engine, Target, TargetRequest
from .tiers import KEEPS, Budget, TierRecord, TierTotal
from .verdict import Check, Divergence, LayerError, Verdict
from .workload import Limits, Workload

__all__ = [
    "COLLECTIVES",
    "KEEPS",
    "SCHEMA_VERSION",
    "Arrivals",
    "Attention",
    "Bound",
    "Budget",
    "Bundle",
    "Candidate",
    "Change",
    "Check",
    "Cluster",
    "Column",
    "ControlFlow",
    "Device",
    "Disaggregated",
    "Divergence",
    "Engine",
    "Estimate",
    "Family",
    "FeedForward",
    "FileEntry",
    "Finding",
    "Findings",
    "Layer",
    "LayerError",
    "LayerKind",
    "Layout",
    "LayoutRun",
    "Limits",
    "Link",
    "Lost",
    "ModelSpec",
    "ModuleNode",
    "Noun",
    "Offload",
    "OpCall",
    "OpGraph",
    "Operation",
    "Output",
    "Overlap",
    "Phase",
    "Plan",
    "Point",
    "RankRecord",
    "Reached",
    "Rejected",
    "Release",
    "Request",
    "Results",
    "Rope",
    "RunRecord",
    "Sampling",
    "Size",
    "StageResult",
    "StandIn",
    "Target",
    "TargetRequest",
    "TensorGroup",
    "TensorTable",
    "TierRecord",
    "TierTotal",
    "Trained",
    "Variant",
    "Verdict",
    "Waived",
    "WeightFamily",
    "Workload",
    "digest",
    "from_json",
    "to_json",
]  # fmt: skip
