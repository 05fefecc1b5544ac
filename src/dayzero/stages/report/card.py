"""The release card: what the files say about the model, each line with where it was read."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from dayzero.schema import ModelSpec, Release, WeightFamily
from dayzero.units import format_bytes, format_count


class Line(NamedTuple):
    """One fact."""

    label: str
    """What it is."""
    value: str
    """Its value as text."""
    source: str
    """Where it was read."""


def card_lines(release: Release) -> list[Line]:
    """The facts of a release, in the order in which people ask for them."""
    model, tensors = release.model, "families"
    lines = [
        ("Origin", release.origin, ""),
        ("Architecture", ", ".join(model.architectures) or model.model_type, "architectures model_type"),
        ("Parameters", f"{format_count(model.parameters)} ({model.parameters:,})", tensors),
        ("Language model alone", _language_model(model), tensors),
        ("Active for one token", "; ".join(_active(model)), tensors),
        ("Checkpoint", f"{format_bytes(model.checkpoint_bytes)} ({model.checkpoint_bytes:,} bytes)", tensors),
        ("Layers", f"{len(model.layers)}: {_counts(model.attention_layers())} attention; {_feed_forwards(model)}",
         "layers"),
        ("Attention", "; ".join(_attention(model)), "heads kv_heads head_dim kv_rank"),
        ("Experts", "; ".join(_experts(model)), "experts top_k"),
        ("Hidden size, vocabulary", f"{model.hidden_size:,}, {model.vocab_size:,}", "hidden_size vocab_size"),
        ("Longest context", f"{model.max_positions:,} tokens" if model.max_positions else "not stated",
         "max_positions"),
        ("Embeddings", "tied to the output head" if model.tied_embeddings else "not tied", "tied"),
        ("Multi-token-prediction layers", str(model.mtp_layers or ""), "mtp_layers"),
        ("Made by", model.provenance, "provenance"),
        ("Weights", _files(release), ""),
        ("Not understood", ", ".join(model.unknowns), ""),
    ]
    return [Line(label, value, _sources(release, keys)) for label, value, keys in lines if value]


def _language_model(model: ModelSpec) -> str:
    """Parameters without the towers; those of multi-token-prediction layers apart."""
    extra = sum(family.parameters for family in model.families if family.role.startswith("mtp"))
    if not extra:
        return format_count(model.parameters_text)
    return f"{format_count(model.parameters_text - extra)} + {format_count(extra)} multi-token prediction"


def tensor_source(release: Release) -> str:
    """Where names, shapes and with them all counts are from."""
    if estimated := release.model.sources.get("families"):
        return estimated
    return "tensor headers" if release.root or release.origin.startswith("hub:") else "card"


def _sources(release: Release, keys: str) -> str:
    """The sources of some values of the model, each once."""
    sources = {**release.model.sources, "families": tensor_source(release)}
    return "; ".join(dict.fromkeys(sources[key] for key in keys.split() if key in sources))


def family_rows(model: ModelSpec) -> list[dict[str, str | int]]:
    """Weight families, those of one role, scheme and split together, the largest first."""
    groups: dict[tuple[str, str, str], list[WeightFamily]] = {}
    for family in model.families:
        groups.setdefault((family.role, family.scheme, family.split), []).append(family)
    rows: list[dict[str, str | int]] = [
        {"role": role, "scheme": scheme, "split": split, "tensors": sum(family.count for family in families),
         "parameters": sum(family.parameters for family in families),
         "bytes": sum(family.stored_bytes for family in families),
         "example": f"{families[0].pattern} {list(families[0].shape)} {families[0].dtype}"}
        for (role, scheme, split), families in groups.items()
    ]
    return sorted(rows, key=lambda row: -int(row["bytes"]))


_DEFINITIONS = {"all": "with embedding and head", "no_embedding": "without input embedding",
                "no_embedding_no_head": "without embedding and head"}


def _active(model: ModelSpec) -> list[str]:
    return [f"{format_count(model.parameters_active[name])} {meaning}"
            for name, meaning in _DEFINITIONS.items() if name in model.parameters_active]


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in counts.items())


def _feed_forwards(model: ModelSpec) -> str:
    return _counts(dict(Counter(model.feed_forwards[layer.feed_forward].kind for layer in model.layers)))


def _attention(model: ModelSpec) -> list[str]:
    lines = []
    for attention in model.attentions.values():
        text = f"{attention.kind}: {attention.heads} heads of {attention.head_dim}"
        if attention.kv_rank:
            text += f", latent of {attention.kv_rank} + {attention.rope_dim or 0}"
        elif attention.kind != "linear":
            text += f", {attention.kv_heads} KV heads"
        lines.append(text + (f", window {attention.window:,}" if attention.window else ""))
    return lines


def _experts(model: ModelSpec) -> list[str]:
    return [f"{kind.experts} routed, {kind.top_k} for each token, {kind.shared_experts} shared; width {kind.width:,}"
            for kind in model.feed_forwards.values() if kind.experts]


def _files(release: Release) -> str:
    weights = [entry for entry in release.files if entry.role == "weights"]
    if not release.has_weights:
        return f"not here; {release.tensors.count:,} tensors described"
    hashed = sum(entry.sha256 is not None for entry in weights)
    agreed = sum(entry.sha256 is not None and entry.sha256 == entry.expected_sha256 for entry in weights)
    missing = f"; MISSING: {', '.join(release.missing_shards)}" if release.missing_shards else ""
    return (f"{len(weights)} files, {release.tensors.count:,} tensors; SHA-256 computed for {hashed}, equal to the one "
            f"that hub or manifest state for {agreed}{missing}")
