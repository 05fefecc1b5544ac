"""Rules about multi-token prediction: what the config declares of it against what the files hold."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from dayzero.data.keys import lookup
from dayzero.data.vocabulary import vocabulary
from dayzero.placement.split import is_mtp
from dayzero.schema import Finding
from dayzero.stages.preflight.rule import Case, rule

_NUMBER = re.compile(r"[0-9]{1,9}")


class Declaration:
    """What the config says about multi-token prediction."""

    def __init__(self, case: Case) -> None:
        words = vocabulary().config
        inside, _, key = case.model.sources.get("mtp_layers", "").partition(": ")[2].rpartition(".")
        table = lookup(case.release.config, inside) if inside else case.release.config
        stated = table.get(key) if key and isinstance(table, Mapping) else None
        off = isinstance(table, Mapping) and any(table.get(word) is False for word in words.flags["use_mtp"])
        self.key = key or words.counts["mtp_layers"][0]
        """The key that states it, or would have to."""
        self.layers = stated if isinstance(stated, int) and not off else 0
        """Layers that it states; 0: none, or it says that they are not used."""


def stored_layers(case: Case) -> dict[int, str]:
    """Number of each multi-token-prediction layer in the files -> name of the module that holds it. A part of its own
    is counted on from the last decoder layer, as are its tensors that are in none of its layers."""
    first, words = len(case.model.layers), set(vocabulary().scopes["mtp"])
    found: dict[int, str] = {}
    for family in case.model.families:
        stem, numbered, _ = family.pattern.partition("{L}")
        for layer in (family.layers or (first,)) if is_mtp(family, case.model) else ():
            number = layer - first if words.intersection(stem.split(".")) else layer
            if numbered or layer not in found:
                found[layer] = f"{stem}{number}" if numbered else stem.rpartition(".")[0]
    return found


def predictions(case: Case, layers: Iterable[int]) -> set[int]:
    """Those of the layers in the files that join the last hidden state to the next token's embedding, as multi-token
    prediction does; a decoder layer has nothing of the kind."""
    words = set(vocabulary().scopes["mtp"])
    joining = [family for family in case.model.families if is_mtp(family, case.model)
               and (family.role == "mtp.projection" or words.intersection(family.pattern.split(".")))]
    if all(family.layers for family in joining):
        return set(layers).intersection(layer for family in joining for layer in family.layers)
    return set(layers)


def lacks(case: Case, layers: Iterable[int]) -> dict[int, str]:
    """What each of these prediction layers in the files lacks to be one; empty: nothing, or some of its names are not
    understood."""
    roles: dict[int, set[str]] = {layer: set() for layer in layers}
    joined = predictions(case, roles)
    shared: set[str] = set()
    for family in case.model.families:
        if is_mtp(family, case.model):
            role = family.role.removeprefix("mtp.")
            shared.update(() if family.layers else (role,))
            for layer in roles.keys() & family.layers:
                roles[layer].add(role)
    return {layer: _lacks(own | shared, layer in joined) for layer, own in roles.items()}


def _lacks(roles: set[str], joined: bool) -> str:
    if "other" in roles:
        return ""
    parts = {role.partition(".")[0] for role in roles}
    if not parts.intersection(("attention", "linear", "indexer")):
        return "attention"
    if not parts.intersection(("mlp", "experts")):
        return "a feed-forward block"
    return "" if joined else "the projection of the embedding"


def is_named(case: Case) -> bool:
    """Whether the index or the engine names a tensor of multi-token prediction: then a sample shows its absence."""
    first, words = len(case.model.layers), set(vocabulary().scopes["mtp"])
    names = [entry.name for entry in case.target.engine.facts.declares or ()]
    for name in (*names, *(case.release.index or ())):
        segments = name.split(".")
        numbers = [int(segment) for segment in segments if _NUMBER.fullmatch(segment)]
        if words.intersection(segments) or (numbers and "layers" in segments and numbers[0] >= first):
            return True
    return False


@rule("mtp-absent", "warning")
def mtp_absent(case: Case) -> Iterator[Finding]:
    """The config declares multi-token-prediction layers that the files do not hold.

    ## What
    `num_nextn_predict_layers`, or another spelling of it, promises layers after the last decoder layer, and one of
    them has no tensors, or none for its attention, its feed-forward block or its projection. An error if the engine is
    to speculate with them, else a warning. A sample of the tensors (`partial = true`) and a config without tensors
    prove nothing.

    ## Why
    Fine-tuning, merging and quantising tools write the decoder and copy the config. The engine then fails to load, or
    fills the draft layers with noise: every draft is rejected, and decoding is slower than without.

    ## Example
    A fine-tuned 94-layer model whose config still promised a layer 94 (modelscope/ms-swift#7848); a merge that lost
    layer 46 (ggml-org/llama.cpp#21172); a quantiser that dropped it (NVIDIA/Model-Optimizer#750).

    ## How to fix
    Copy the layers from the original release, or set the key to 0.
    """
    declared = Declaration(case)
    if not declared.layers or not case.has_tensors or case.release.is_incomplete:
        return
    if case.target.partial and not is_named(case):
        return
    first, stored = len(case.model.layers), stored_layers(case)
    promised = range(first, first + declared.layers)
    gaps = dict.fromkeys(promised, "everything") | lacks(case, [layer for layer in promised if layer in stored])
    missing = [layer for layer, gap in gaps.items() if gap and not (case.target.partial and layer in stored)]
    if missing:
        wanted, layer = case.target.engine.facts.speculative == "mtp", missing[0]
        whole = declared.layers - len(missing)
        later = "" if wanted else "; it matters once the engine is to speculate with them"
        yield Finding(
            rule="mtp-absent", severity="error" if wanted else "warning", subject=f"{declared.key} (layers.{layer})",
            message=f"{declared.key} is {declared.layers}, and the files hold {whole or 'none'} of these prediction "
                    f"layers: layer {layer} lacks {gaps[layer]}{later}",
            hint=f"copy the layers from the original release, or set {declared.key} to {whole}",
            facts={"layer": layer, "declared": declared.layers, "stored": whole})


@rule("mtp-undeclared", "warning")
def mtp_undeclared(case: Case) -> Iterator[Finding]:
    """The files hold multi-token-prediction layers that the config does not declare.

    ## What
    Tensors of layers after the last decoder layer and the declared prediction layers, which join a hidden state to an
    embedding as prediction layers do; or a part of its own (`mtp.`) without a key that declares it.

    ## Why
    Engines that take the number from the config build no module for them: some ignore the tensors, some stop with a
    KeyError, and speculation is not on offer.

    ## Example
    A model with a layer beyond those that the config counts stops an engine with a KeyError
    (local-inference-lab/vllm#436).

    ## How to fix
    State the number in the config, or leave the tensors out.
    """
    declared, first, stored = Declaration(case), len(case.model.layers), stored_layers(case)
    extra = [layer for layer in sorted(stored) if layer >= first + declared.layers]
    if extra and (case.target.partial or predictions(case, extra[:1])):
        yield Finding(
            rule="mtp-undeclared", severity="warning", subject=f"{declared.key} ({stored[extra[0]]})",
            message=f"the files hold {len(stored)} prediction layers, the config declares {declared.layers}",
            hint=f"set {declared.key} to {len(stored)} in the config, or leave {stored[extra[0]]} out",
            facts={"layer": extra[0], "declared": declared.layers, "stored": len(stored)})
