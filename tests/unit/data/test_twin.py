"""twin.toml speaks of facts that the vocabulary has, in expressions that can be worked out."""

from __future__ import annotations

import re

from dayzero.data.twin import twin_facts
from dayzero.data.vocabulary import vocabulary
from dayzero.expression import evaluate

NAME = re.compile(r"[a-z_]+")


def known() -> set[str]:
    words = vocabulary().config
    sliding = {f"sliding_{name}" for name in ("heads", "kv_heads", "head_dim", "v_head_dim")}
    return {*words.sizes, *words.counts, *words.flags, *sliding}


def test_facts_are_those_of_the_vocabulary() -> None:
    facts = twin_facts()
    counted = {name for group in facts.heads for name in group}
    assert known() >= {*counted, *facts.cut, *facts.uncut, *facts.derived}
    assert set(facts.by_number) <= vocabulary().config.spellings().keys()


def test_expressions_can_be_worked_out() -> None:
    facts = twin_facts()
    values = dict.fromkeys(known(), 8)
    texts = [*facts.derived.values(), *(text for own in facts.axes.values() for text in own)]
    for text in texts:
        assert known() >= set(NAME.findall(text)), text
        assert evaluate(text, values) > 0
