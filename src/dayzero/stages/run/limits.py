"""What is asked of a run against what the model and this machine can hold, before anything is started."""

from __future__ import annotations

from collections.abc import Sequence

from dayzero.backends import host
from dayzero.errors import DayzeroError, NotPossible, ReleaseError, UsageError
from dayzero.ops import cache_bytes_per_token
from dayzero.schema import Layout, ModelSpec, Target
from dayzero.units import format_bytes

_VALUE = 2
"""Bytes of one cached value; twice as much in f32."""
_LOGIT = 4
"""Bytes of one dumped logit: f32."""
_TOKEN = 16
"""Bytes in which a generated token and its margin are kept, at least."""
_RANK = 256 << 20
"""Private memory of a rank with its libraries imported, before it loads a weight: 255 MiB with torch 2.13 on Linux."""
_READINGS = 4
"""How often a run reads each prompt at least: for its first token, twice to generate, and for the dump."""
MOST_SEED = 2**63 - 1
"""Random generators take 64 bits, and so does JSON."""
_FEWEST = 8
_RANKS_A_CORE = 2
_HINT = "give shorter prompts with --prompt, or fewer tokens with --max-new-tokens"


def too_many_ranks(layout: Layout, spares: int = 0) -> str:
    """Why this machine cannot run that many processes side by side; empty when it can."""
    ranks, cores, free = layout.world_size + spares, host.cores(), host.available_memory()
    most = max(_FEWEST, _RANKS_A_CORE * cores)
    if ranks > most:
        return f"{ranks} ranks are more than the {most} that {cores} cores can run side by side"
    if free and ranks * _RANK > free:
        return (f"{ranks} ranks take {format_bytes(ranks * _RANK)} before they load a weight, "
                f"and {format_bytes(free)} are free")
    return ""


def check_seed(seed: int, count: int = 1) -> None:
    """Raises UsageError for a seed that random generators do not take, or one of the `count` that begin with it."""
    most = MOST_SEED - count + 1
    if not 0 <= seed <= most:
        raise UsageError("the seed is out of range", f"give one from 0 to {most}")


def check_tokens(model: ModelSpec, prompts: Sequence[Sequence[int]], ends: object) -> None:
    """Raises UsageError for a prompt without a token, ReleaseError when the release's tokenizer gives, or its end
    tokens are (`ends`: null, an id or a list of ids), what is no row of the embedding."""
    if empty := [number for number, ids in enumerate(prompts, 1) if not ids]:
        raise UsageError(f"prompt {empty[0]} has no tokens: nothing can follow it", "give another with --prompt")
    if (largest := max(map(max, prompts))) >= model.vocab_size:
        raise ReleaseError(f"the tokenizer gives token {largest}, but the model has {model.vocab_size:,} tokens "
                           "(vocab_size in config.json)", "get tokenizer and config of the same revision")
    listed = ends if isinstance(ends, list) else [] if ends is None else [ends]
    for end in listed:
        if type(end) is not int or not 0 <= end < model.vocab_size:
            raise ReleaseError(f"eos_token_id holds {end!r}, which is none of the model's {model.vocab_size:,} tokens",
                               "correct it in generation_config.json, or in config.json where there is none")


def check_length(model: ModelSpec, prompts: Sequence[Sequence[int]], max_new_tokens: int, batch: int, *,
                 chosen: bool) -> None:
    """Raises UsageError when a prompt and what is to follow it are longer than the model or this machine can take;
    NotPossible when nobody has `chosen` them. `prompts` are token ids, of which a replica generates `batch` together.
    """
    refusal: type[DayzeroError | NotPossible] = UsageError if chosen else NotPossible
    longest = max(map(len, prompts))
    if model.max_positions and longest + max_new_tokens > model.max_positions:
        number = list(map(len, prompts)).index(longest) + 1
        raise refusal(f"prompt {number} has {longest:,} tokens; with {_count(max_new_tokens)} new ones that is more "
                      f"than the {model.max_positions:,} that the model's config allows", _HINT)
    need, free = least_bytes(model, list(map(len, prompts)), max_new_tokens, batch), host.available_memory()
    if free and need > free:
        raise refusal(f"prompts of up to {longest:,} tokens with {_count(max_new_tokens)} new ones take "
                      f"more than the {format_bytes(free)} that are free on this machine", _HINT)


def least_bytes(model: ModelSpec, lengths: Sequence[int], max_new_tokens: int, batch: int) -> int:
    """Memory that one replica takes at least beside its weights: the cache of its longest batch at full length, or the
    logits of the longest prompt, which are dumped."""
    longest = max(lengths)
    attentions = [model.attentions[layer.attention] for layer in model.layers]
    whole = sum(cache_bytes_per_token(each, _VALUE) for each in attentions if each.window is None)
    sequences = min(batch, len(lengths))
    return max(sequences * (longest + max_new_tokens) * (whole + _TOKEN), longest * model.vocab_size * _LOGIT)


def check_time(model: ModelSpec, prompts: Sequence[Sequence[int]], layouts: Sequence[Layout], target: Target,
               limit_s: float) -> None:
    """Raises NotPossible when reading the prompts takes longer than a launch may, even at the device's full speed."""
    flops = target.cluster.device.flops.get(model.dtype)
    if not flops:
        return
    once = sum(least_flops(model, len(prompt)) for prompt in prompts)
    for layout in layouts:
        seconds = _READINGS * once / (flops * layout.world_size)
        if seconds > limit_s:
            raise NotPossible(f"to read prompts of up to {max(map(len, prompts)):,} tokens {_READINGS} times takes at "
                              f"least {seconds:,.0f} s with {layout.text}, and a launch may take {limit_s:,.0f} s",
                              _HINT)


def least_flops(model: ModelSpec, tokens: int) -> float:
    """Operations of one prompt: two for each active weight and token, and those of the scores and values that causal
    attention needs, tokens^2 / 2 for each head."""
    attentions = [model.attentions[layer.attention] for layer in model.layers]
    pairs = sum(each.heads * (each.head_dim + each.v_head_dim) * min(tokens / 2, each.window or tokens)
                for each in attentions if each.kind != "linear")
    return 2.0 * tokens * (model.parameters_active.get("no_embedding_no_head", 0) + pairs)


def _count(number: int) -> str:
    """With all digits, or the power of two of a number that no memory could hold."""
    return f"{number:,}" if number < 10**15 else f"2^{number.bit_length() - 1} or more"
