"""Whether a release turns text into the reference's tokens: the same ids of the prompts, and the same files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dayzero.data.compare import words
from dayzero.errors import NotPossible
from dayzero.runtime.tokens import Tokens
from dayzero.schema import Check, Release

from .measure import judged
from .published import content, differences, flat, listed, names, parsed, table, told

NAME = "tokenizer: files and prompts that are not the reference's"
_SOURCE = "token ids of the prompts, parsed JSON and digests are compared"
Ids = tuple[tuple[int, ...], ...]


def check_tokenizer(release: Release, reference: Release, prompts: Sequence[str], ran: Sequence[Ids],
                    ) -> tuple[list[Check], dict[str, str]]:
    """(one check; comparisons not made). `ran`: the token ids that each layout ran.

    Raises ReleaseError when a file cannot be read.
    """
    not_made, odd = dict[str, str](), list[str]()
    try:
        with Tokens(str(reference.root)) as tokenizer:
            ids = tokenizer.encode(prompts)
        odd += [f"prompt {number + 1} has other token ids" for number, tokens in enumerate(ids)
                if any(len(each) <= number or each[number] != tokens for each in ran)]
    except NotPossible as outcome:
        not_made["tokenizer: token ids of the prompts"] = f"the reference's: {outcome.reason}"
    ours, theirs = names(release, "tokenizer"), names(reference, "tokenizer")
    odd += _files(release, reference, ours & theirs)
    if _template(release) != _template(reference):
        odd.append("the chat template is another one")
    for name in sorted((ours ^ theirs) - {words().tokenizer.template_file}):
        not_made[f"tokenizer: {name}"] = f"{'this release' if name in ours else 'the reference'} alone has it"
    same = f"{len(ours & theirs)} files are the same"
    return [judged(NAME, float(len(odd)), 0.0, _SOURCE, listed(odd, same))], not_made


def _files(release: Release, reference: Release, both: set[str]) -> list[str]:
    special = words().tokenizer
    idle, odd = (*special.idle, special.template_key, f"{special.template_key}.*"), list[str]()
    for name in sorted(both - {special.template_file}):
        if name == special.config:
            mine, other = (dict(flat(table(each, name))) for each in (release, reference))
            odd += [f"{name}: {text}" for text in told(differences(mine, other, idle))]
        elif parsed(release, name) != parsed(reference, name):
            odd.append(f"{name} has other content")
    return odd


def _template(release: Release) -> Any:
    """The chat template: of its own file, else of the tokenizer's config; None when there is none."""
    special = words().tokenizer
    if special.template_file in names(release, "tokenizer"):
        return content(release, special.template_file).decode(errors="replace")
    return table(release, special.config).get(special.template_key)
