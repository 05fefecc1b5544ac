"""The role of a weight from its name alone: which matrix of which block it is, and what tensor parallelism cuts.

The words are data (data/vocabulary.toml); names that none of them fits get the role `other` and are listed.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

from dayzero.data.vocabulary import RoleWords, form_of, vocabulary
from dayzero.placement.split import TOWERS

PLACEHOLDERS = {"{L}", "{E}"}


@dataclass(frozen=True)
class Role:
    """What a tensor's name says."""

    name: str
    """Role, such as attention.q; a multi-token-prediction weight begins with `mtp.`."""
    form: str
    """weight, bias, packed, packed_transposed, scale, global_scale, zero_point or buffer."""
    stem: str
    """The name without the ending that gave the form: equal for a weight, its scale and its bias."""
    split: str = "replicated"
    """What tensor parallelism cuts."""
    axis: int | None = None
    """Axis of the [out, in] matrix that is cut."""
    scope: str = ""
    """vision, audio, projector or mtp; empty: the decoder."""

    @property
    def in_tower(self) -> bool:
        """Whether it belongs to a part that is not the language model."""
        return self.scope in TOWERS


def role_of(pattern: str) -> Role:
    """Role of the tensors with that name pattern (`{L}` and `{E}` for layer and expert)."""
    form, stem = form_of(pattern)
    segments = tuple(segment for segment in stem.split(".") if segment)
    words = tuple(segment for segment in segments if segment not in PLACEHOLDERS and not segment.isdigit())
    scope = _scope(segments)
    if scope in TOWERS:
        return Role(scope, form, stem, scope=scope)
    name, split, axis = _decoder_role(words, len(segments))
    if form == "buffer" and name == "other":
        name = "buffer"
    if scope == "mtp" and not name.startswith("mtp."):
        name = f"mtp.{name}"
    return Role(name, form, stem, split, axis, scope)


def _scope(segments: tuple[str, ...]) -> str:
    for at, segment in enumerate(segments, 1):
        for scope, words in vocabulary().scopes.items():
            if segment in words and (at < len(segments) or scope in TOWERS):
                return scope
    return ""


def _decoder_role(words: tuple[str, ...], depth: int) -> tuple[str, str, int | None]:
    leaf, parents = (words[-1], frozenset(words[:-1])) if words else ("", frozenset())
    for rule in vocabulary().roles:
        if _fits(rule, leaf, parents, depth):
            return rule.role, rule.split, rule.axis
    feed_forward = vocabulary().feed_forward
    matrix = next((name for name, matrix in feed_forward.matrices.items() if leaf in matrix.words), None)
    if matrix is not None:
        for name, place in feed_forward.places.items():
            if not place.within or parents.intersection(place.within):
                return f"{name}.{matrix}", place.split, feed_forward.matrices[matrix].axis
    return "other", "replicated", None


def _fits(rule: RoleWords, leaf: str, parents: frozenset[str], depth: int) -> bool:
    if rule.depth and depth > rule.depth:
        return False
    if rule.within and not parents.intersection(rule.within):
        return False
    return any(fnmatchcase(leaf, word) for word in rule.words)
