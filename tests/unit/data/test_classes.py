"""Defaults of config classes and what is built into their code."""

from dayzero.data.classes import class_defaults, class_facts
from dayzero.data.vocabulary import vocabulary


def test_defaults_of_known_classes() -> None:
    # transformers: BloomConfig, Gemma3TextConfig, MistralConfig (models/*/configuration_*.py)
    defaults = class_defaults().defaults
    assert defaults["bloom"]["tie_word_embeddings"] is True
    assert defaults["gemma3_text"]["head_dim"] == 256
    assert defaults["mistral"]["num_key_value_heads"] == 8
    assert class_defaults().inner["gemma3"] == "gemma3_text"


def test_nothing_defines_how_large_a_model_is() -> None:
    """A config without its width or depth is damaged, and no default may hide that."""
    sizes = vocabulary().config.sizes
    never = {*sizes["hidden_size"], *sizes["layers"]}
    assert not any(never & values.keys() for values in class_defaults().defaults.values())


def test_built_in_facts_are_facts_of_the_vocabulary() -> None:
    known = vocabulary().config.spellings()
    for kind, entry in class_facts().items():
        assert entry.facts.keys() <= known.keys(), kind
        assert {value for value in entry.facts.values() if isinstance(value, str)} <= known.keys(), kind
