"""Which rules are meant by names and prefixes."""

from __future__ import annotations

import pytest

from dayzero.errors import UsageError
from dayzero.stages.preflight import chosen, rules


def _names(**words: object) -> list[str]:
    return [rule.name for rule in chosen(**words)]


def test_all_of_them_by_name() -> None:
    assert chosen() == rules()
    assert _names(select=["shard-width", "rope-base"]) == ["rope-base", "shard-width"]


def test_a_prefix_ends_in_a_hyphen() -> None:
    shards = [rule.name for rule in rules() if rule.name.startswith("shard-")]
    assert len(shards) >= 5 and _names(select=["shard-"]) == shards
    assert _names(select=["shard-", "rope-base"], ignore=["shard-kv-", "shard-heads"]) == [
        "rope-base", *(name for name in shards if name not in ("shard-heads", "shard-kv-heads"))]
    assert set(_names(ignore=["shard-"])) == {rule.name for rule in rules()} - set(shards)


@pytest.mark.parametrize(("word", "meant"), [("shard-hed", "shard-heads"), ("quant", "quant-"), ("Shard-heads", ""),
                                             ("", ""), ("-", ""), ("no-", "")])
def test_an_unknown_name_is_refused(word: str, meant: str) -> None:
    for words in ({"select": [word]}, {"ignore": ["shard-heads", word]}):
        with pytest.raises(UsageError, match="no rule is named") as told:
            chosen(**words)
        assert f'did you mean "{meant}"?' in told.value.hint if meant else "quant-" in told.value.hint
        assert "\n" not in told.value.hint


def test_no_rule_is_not_a_pass() -> None:
    with pytest.raises(UsageError, match="every rule that is selected is ignored too"):
        chosen(select=["shard-heads"], ignore=["shard-"])
