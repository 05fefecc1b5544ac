"""Located: where a run first computes something else than the released model, how the error looks, and why."""

from __future__ import annotations

from .base import Noun


class Pattern(Noun, frozen=True, kw_only=True):
    """A structure of the error that explains much of it."""

    name: str
    """What kind, such as `channels`, `heads`, `experts`, `rank boundary`, `positions`, `scale`, `permutation`."""
    explained: float
    """Share of the error's energy that the structure accounts for, 0 to 1."""
    words: str
    """The structure and what it suggests, in a sentence."""
    first: int = -1
    """First index of what is hit along its axis; -1: it is no range."""
    end: int = -1
    """End of that range, exclusive."""


class Cause(Noun, frozen=True, kw_only=True):
    """A change of the reference with which the error vanishes."""

    name: str
    """What was changed, such as `value: scaling` or `weight: halves swapped`."""
    explained: float
    """Share of the error's energy, above noise, that is gone with the change, 0 to 1."""
    words: str
    """What the run does instead, in a sentence."""


class Errors(Noun, frozen=True, kw_only=True):
    """How far values are apart, relative to the values themselves; the largest float when one is not a number."""

    overall: float
    """||x - r|| / ||r|| over all values."""
    row: float
    """Largest over the rows: ||x - r|| of a row over the larger of its own norm and a tenth of a mean row's."""
    channel: float
    """The same over channels."""
    scale: float = 0.0
    """|<x - r, r>| / ||r||^2: a common factor, which rounding leaves alone."""
    flips: int = 0
    """Of indices: rows with another set that rounding does not explain."""


class PlaceError(Noun, frozen=True, kw_only=True):
    """One recorded place: the reference, given what the run had before it, against what the run had there."""

    module: str
    """The module whose own code or weights computed it: the one called last, or the one that calls it."""
    name: str
    """The module at whose border the place lies."""
    what: str
    """input or output."""
    slot: str
    """Which of several tensors."""
    call: int
    """Which call of that module in a pass."""
    order: int
    """Place in the order of execution."""
    error: Errors
    """Of the run."""
    noise: Errors
    """Of the reference in the run's precision and of one whose inputs are perturbed by a roundoff, the larger."""
    tolerance: Errors
    """What passes."""
    guilty: bool
    """Whether the error is out of its tolerance."""


class Located(Noun, frozen=True, kw_only=True):
    """A guilty place."""

    layer: int | None
    """Number of the layer; None: it is in none."""
    module: str
    """Path of the module whose own weights or code are wrong, as the model names it."""
    op: str
    """What that module does there: operators between the places before and this one."""
    place: PlaceError
    """Where the error was seen, and how large it is."""
    patterns: tuple[Pattern, ...] = ()
    """What the error looks like, the best first."""
    causes: tuple[Cause, ...] = ()
    """What explains more than 95 % of it, the best first."""
    nearest: tuple[Cause, ...] = ()
    """Where none does: changes that explain a part of it."""
    tried: int = 0
    """Changes of the reference that were run; 0: none was looked for, or the module cannot run alone."""
    cut_short: bool = False
    """Whether time ran out before every change had been run."""

    @property
    def cause(self) -> Cause | None:
        """The best one."""
        return self.causes[0] if self.causes else None


class RoundedWeights(Noun, frozen=True, kw_only=True):
    """Matrices of the run that are the reference's, rounded to few levels: quantised weights."""

    how: str
    """Such as `4 bits in blocks of 32`; empty: in a way that cannot be computed again from the reference's weights."""
    modules: tuple[str, ...]
    """Whose matrices."""
    of: int
    """Modules with matrices that were compared."""
    smallest: float
    """Own relative error of the one that is off least."""
    largest: float
    """Of the one that is off most."""

    @property
    def words(self) -> str:
        """A sentence."""
        many = f"{len(self.modules)} of {self.of} modules with matrices"
        size = f"(relative errors of their own {self.smallest:.2g} to {self.largest:.2g})"
        if not self.how:
            return f"{many} are off alike {size} and nothing else is: as noise of quantised weights, in a way that " \
                   "cannot be computed again from the reference's; the quantised release as reference shows the rest"
        return f"{many} have the reference's weights rounded to {self.how} {size}: noise of quantised weights"


class Location(Noun, frozen=True, kw_only=True):
    """All guilty places of a run, in the order of execution."""

    located: tuple[Located, ...]
    """Those that were looked into: of each module and place of one name in several layers, the first."""
    places: tuple[PlaceError, ...]
    """Every place that was compared."""
    not_compared: dict[str, str] = {}
    """What was recorded and could not be compared, and why."""
    rounded: tuple[RoundedWeights, ...] = ()
    """Matrices that are rounded. Where it says how, the reference's were rounded so before `places` were judged."""
    reference: str = ""
    """What it was compared with."""

    @property
    def passed(self) -> bool:
        """Whether the run is what it should be."""
        return not (self.guilty or self.rounded)

    @property
    def first(self) -> Located | None:
        """What is guilty first; None: nothing is."""
        return self.located[0] if self.located else None

    @property
    def guilty(self) -> tuple[PlaceError, ...]:
        """Places out of their tolerance."""
        return tuple(each for each in self.places if each.guilty)
