"""The card of a release: the same architecture, stated as facts. `read_card` is the way back."""

from __future__ import annotations

from dayzero.errors import CardError
from dayzero.schema import Release, TensorTable

from .card import About, Card, architecture_of, card_tensors
from .card_cover import Cover
from .card_names import by_name
from .config import Config
from .facts import language_facts
from .spec import estimate


def card_of(release: Release) -> Card:
    """The card: its config as it is, standard blocks where they explain tensors, and a row for each other name. Of a
    release without tensors the standard blocks that its config asks for, as `ModelSpec` counts them.
    Raises CardError where a card cannot state the tensors, ReleaseError for the config."""
    config = dict(release.config)
    if release.model.quantization is not None and Config(config).find("quantization") is None:
        config["quantization_config"] = release.model.quantization
    architecture = architecture_of(config)
    tensors = release.tensors if release.tensors.count else _estimated(config)
    cover = Cover(architecture, by_name(tensors))
    blocks, rows = cover.run()
    about = About(name=release.name, hub=release.hub, sources=[_source(release)], prefix=cover.prefix)
    card = Card(card=about, config=config, blocks=tuple(blocks), tensors=rows)
    _prove(card, tensors)
    return card


def _source(release: Release) -> str:
    where = release.hub or release.name
    if release.tensors.count:
        return f"config and tensor headers of {where}; {release.tensors.count:,} tensors"
    return f"config of {where}; there are no tensors, so names and dtypes are those of standard blocks"


def _prove(card: Card, tensors: TensorTable) -> None:
    """Raise CardError unless the card gives exactly these tensors."""
    why = "names that hold what stands for a number in cards"
    try:
        if same_tensors(card_tensors(card), tensors):
            return
    except CardError as error:
        why = error.message
    raise CardError(f"a card cannot state the tensors of {card.card.name}: {why}", "use the files themselves")


def same_tensors(one: TensorTable, two: TensorTable) -> bool:
    """Whether both have the same names, shapes and dtypes."""
    return by_name(one) == by_name(two)


def _estimated(config: dict[str, object]) -> TensorTable:
    stated = Config(config)
    return estimate(stated, language_facts(stated))[0]
