"""Whether a release is configured like the reference: what the prompts do not exercise shows nowhere else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dayzero.data import keys
from dayzero.data.compare import words
from dayzero.data.vocabulary import vocabulary
from dayzero.runtime.assignment import DTYPES
from dayzero.schema import Check, Release

from .measure import judged
from .published import Table, differences, flat, listed, matches, names, parsed, table, told
from .stored import PLAIN

NAME = "config: keys and files that are not the reference's"
_SOURCE = "compared key by key, as the library reads them where it can build both; keys without effect left out"
_SIZES = "config: sizes of the model that are not the reference's"
Found = dict[str, tuple[Any, Any]]


def check_sizes(release: Release, reference: Release) -> list[Check]:
    """A check that fails when the outputs of the two cannot be compared; none when they can."""
    sizes = {"hidden size": (release.model.hidden_size, reference.model.hidden_size),
             "vocabulary": (release.model.vocab_size, reference.model.vocab_size),
             "layers": (len(release.model.layers), len(reference.model.layers))}
    odd = {name: pair for name, pair in sizes.items() if pair[0] != pair[1]}
    return [judged(_SIZES, float(len(odd)), 0.0, "numbers are compared", listed(told(odd), ""))] if odd else []


def check_config(release: Release, reference: Release) -> tuple[list[Check], dict[str, str]]:
    """(one check over config, what is suggested for generating, other configs and code; comparisons not made).

    Raises ReleaseError when a file cannot be read.
    """
    found, not_made = _config(release, reference) | _generation(release, reference), dict[str, str]()
    texts = told(found) + _others(release, reference)
    if _schemes(release) != _schemes(reference):
        quantised = [text for text in texts if matches(text.split()[0], words().quantization)]
        texts = [text for text in texts if text not in quantised]
        if quantised:
            not_made["config: tables of quantisation"] = "not comparable: the weights are stored in other formats"
    same = "all keys that have an effect are the same"
    return [judged(NAME, float(len(texts)), 0.0, _SOURCE, listed(texts, same))], not_made


def _config(release: Release, reference: Release) -> Found:
    """The keys as they are written; where these differ, as the library understands both."""
    found = _apart(release.config, reference.config)
    built = [_built(each) for each in (release, reference)] if found else []
    if built and built[0] is not None and built[1] is not None:
        found = _apart(built[0], built[1])
    return {key: pair for key, pair in found.items()
            if not (matches(key, words().dtype) and _as_stored(pair, release, reference))}


def _apart(ours: Table, theirs: Table) -> Found:
    return differences(_spelled(ours), _spelled(theirs), words().idle)


def _spelled(raw: Table) -> dict[str, Any]:
    """Flat, each key in the spelling that is compared."""
    spelled: dict[str, Any] = {}
    for key, value in flat(raw):
        path, _, last = key.rpartition(".")
        name = ".".join(filter(None, (path, words().spellings.get(last, last))))
        ordered = sorted(map(str, value)) if isinstance(value, list) and matches(key, words().unordered) else value
        spelled[name if spelled.get(name, ordered) == ordered else key] = ordered
    return spelled


def _built(release: Release) -> dict[str, Any] | None:
    """The config as the library reads it, with its aliases and defaults; None where it cannot."""
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig

    try:
        return dict(AutoConfig.from_pretrained(str(release.root), local_files_only=True,
                                               trust_remote_code=False).to_dict())
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ImportError, StrictDataclassError):
        return None  # the keys as they are written count


def _as_stored(pair: tuple[Any, Any], release: Release, reference: Release) -> bool:
    """Whether two stated dtypes are those of the two releases' files: one was converted from the other."""
    stored = release.model.dtype, reference.model.dtype
    return stored[0] != stored[1] and all(
        DTYPES.get(scheme) == str(stated).removeprefix("torch.") for scheme, stated in zip(stored, pair, strict=True))


def _generation(release: Release, reference: Release) -> Found:
    """What is suggested for generating; token ids come from the config where nothing is."""
    ours, theirs = _suggested(release), _suggested(reference)
    file = words().generation.file
    return {f"{file}:{key}": pair for key, pair in differences(ours, theirs, words().generation.idle).items()}


def _suggested(release: Release) -> dict[str, Any]:
    stated = {key: value for key, value in flat(table(release, words().generation.file)) if value is not None}
    inherited = {name: value for name, _, value in keys.stated(release.config, words().generation.from_config)}
    return inherited | stated


def _others(release: Release, reference: Release) -> list[str]:
    """Other configs, and code, that differ or that only one release has."""
    known = {*vocabulary().config.files, words().generation.file}
    ours, theirs = (names(each, "config", "code") - known for each in (release, reference))
    odd = [f"{name} has other content" for name in sorted(ours & theirs)
           if parsed(release, name) != parsed(reference, name)]
    return odd + [f"{name} is in {'this release' if name in ours else 'the reference'} alone"
                  for name in sorted(ours ^ theirs)]


def _schemes(release: Release) -> Mapping[str, None]:
    """Formats of its quantised weights."""
    return dict.fromkeys(sorted({each.scheme for each in release.model.families
                                 if each.parameters and each.scheme not in PLAIN}))
