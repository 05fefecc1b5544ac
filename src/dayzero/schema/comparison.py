"""Comparison: two golden dumps place by place, with what each difference is judged by."""

from __future__ import annotations

from .base import Noun
from .located import Pattern
from .verdict import Check, Divergence


class Side(Noun, frozen=True, kw_only=True):
    """A dump that took part."""

    folder: str
    """Where it is."""
    release: str
    """What ran."""
    engine: str
    """By what."""
    dtype: str
    """Most frequent dtype of its parameters."""
    layout: str
    """Degrees of the run."""
    mode: str
    """whole, sampled or statistics."""


class NamePair(Noun, frozen=True, kw_only=True):
    """Names that mean the same; `*` stands for any number. One of the two sides has one name."""

    a: tuple[str, ...]
    """Of the reference."""
    b: tuple[str, ...]
    """Of the candidate."""
    how: str = "told by --map"
    """How it was found."""
    order: tuple[int, ...] | None = None
    """Of several for one: which of them follow each other in its columns; None: as listed, or tried on the values."""
    groups: int = 1
    """Of several for one: how often that row of parts is repeated, each time with this share of every part."""


class PlaceDistance(Noun, frozen=True, kw_only=True):
    """How far one tensor of the candidate is from the reference's."""

    name: str
    """Path of the module in the reference, with what it is of it."""
    module: str
    """Path of the module in the reference."""
    kind: str
    """What the module is, by its structure."""
    layer: int | None
    """Number of the layer; None: it is in none."""
    what: str
    """input, output, router, logits, gradient or parameter."""
    order: int
    """Place in the order of execution of the reference."""
    kept: str
    """whole, sampled or statistics: what of the values was compared."""
    rows: int
    """Rows that are judged one by one: not those that took other experts, nor those that attend to such."""
    relative_l2: float
    """||x - r|| / ||r|| over them; of statistics the most that can be told: no less than their difference says."""
    max_abs: float
    """Largest difference."""
    cosine: float
    """Cosine of the angle between the two."""
    ulps: tuple[int, int, int]
    """Median, 99th percentile and largest distance in ULPs of the coarser dtype, over evenly spaced values."""
    lost: int
    """Values that are NaN or infinite in one of the two only."""
    row: float
    """Largest relative L2 of a row: ||x - r|| of it over the larger of its own norm and a tenth of a mean row's."""
    row_tolerance: float
    """Largest of these that passes."""
    channel: float
    """The same over channels."""
    channel_tolerance: float
    """Largest of these that passes."""
    scale: float
    """|<x - r, r>| / ||r||^2: by which common factor the candidate is off; roundings cancel in it."""
    scale_tolerance: float
    """Largest that passes."""
    touched_rows: int
    """Rows that attend to one that took other experts; their median is judged."""
    touched: float
    """Median relative L2 of those rows."""
    touched_tolerance: float
    """Largest that passes."""
    flipped_rows: int
    """Rows that took other experts; they are not judged."""
    flipped_l2: float
    """Relative L2 over those; 0 where there are none."""
    noise: float
    """Relative L2 of a correct run at this place; measured or estimated, as `source` says."""
    tolerance: float
    """Largest relative L2 that passes."""
    source: str
    """Where the tolerance comes from."""
    limit: float
    """The usual constant limit of the precision, for comparison."""
    passed: bool
    """Whether all three are within their tolerance, and nothing is lost."""


class RouterAgreement(Noun, frozen=True, kw_only=True):
    """Decisions of one router as sets."""

    name: str
    """Path of the router in the reference."""
    layer: int | None
    """Number of the layer."""
    order: int
    """Place in the order of execution."""
    rows: int
    """Rows with a decision in both."""
    flips: int
    """Rows whose sets differ."""
    legitimate: int
    """Of these, flips that the noise of the scores explains."""
    overlap: float
    """Mean share of the chosen that both chose."""
    margin: float
    """Largest gap of scores that a flip went over."""
    tolerance: float
    """Largest gap that noise explains."""
    source: str
    """Where that comes from."""
    flips_tolerance: int
    """Most rows that may flip."""
    passed: bool
    """Whether all flips are legitimate, and not too many."""


class LogitsAgreement(Noun, frozen=True, kw_only=True):
    """What tokens the two would choose."""

    name: str
    """Which logits."""
    rows: int
    """Rows that both have."""
    argmax: float
    """Share of rows with the same likeliest token."""
    top: float
    """Mean share of the reference's likeliest tokens that are the candidate's too."""
    k: int
    """How many tokens those are."""
    kl_mean: float
    """Mean KL divergence of the candidate from the reference, nats."""
    kl_max: float
    """Largest of a row."""
    margin: float
    """Largest margin in the reference by which a likeliest token was lost."""
    lead: float
    """Largest such margin that noise explains."""
    ties: int
    """Rows whose likeliest token leads by no more than that in the reference: noise may turn them."""


class TokenDifference(Noun, frozen=True, kw_only=True):
    """A position at which the two would choose other tokens. Margins are in nats: differences of logits are those of
    logarithms of probabilities."""

    name: str
    """Which logits, or `logprobs`."""
    sequence: int
    """Number of the sequence."""
    position: int
    """Of the token that is chosen, from 0."""
    given: int
    """Token that stands there; -1: none, or not known."""
    a: int
    """The reference's likeliest token."""
    a_margin: float
    """By how much it leads over its second."""
    b: int
    """The candidate's likeliest token."""
    b_margin: float
    """By how much it leads over its second."""
    lead: float
    """By how much `a` leads over `b` in the reference; at least so much, where `b` is not among the likeliest that were
    recorded."""
    tie: bool
    """Whether that is no more than noise explains."""


class MatrixDistance(Noun, frozen=True, kw_only=True):
    """Rows of one matrix as both runs had loaded it."""

    name: str
    """The parameter's."""
    layer: int | None
    """Number of the layer; None: it is in none."""
    rows: int
    """Rows that both recorded."""
    relative_l2: float
    """||x - r|| / ||r|| over them."""
    same: bool
    """Whether they are the reference's, or what a cast makes of them."""
    rounded: str
    """How they are the reference's, rounded: `16 levels in blocks of 32`; empty: they are not."""
    found: str
    """Other matrix of the reference that they are of; empty: none is near."""


class Comparison(Noun, frozen=True, kw_only=True):
    """Candidate `b` against reference `a`."""

    a: Side
    """Reference."""
    b: Side
    """Candidate."""
    noise: tuple[Side, ...]
    """Correct runs that tell the noise."""
    judge: str
    """What decides: measured (tolerances of each place), constant or cosine."""
    checks: tuple[Check, ...]
    """Every comparison with its tolerance."""
    places: tuple[PlaceDistance, ...]
    """Places that were compared, in the order of execution."""
    recorded: int
    """Places of the reference, compared or not."""
    routers: tuple[RouterAgreement, ...]
    """Routers in the order of execution."""
    weights: tuple[MatrixDistance, ...] = ()
    """Matrices of which both recorded rows as they were loaded."""
    logits: tuple[LogitsAgreement, ...]
    """Logits."""
    tokens: tuple[TokenDifference, ...]
    """Positions at which the two would choose other tokens, the first thousand."""
    first_divergence: Divergence | None
    """First place out of tolerance; None: there is none."""
    pattern: tuple[Pattern, ...]
    """What the error looks like there, best first."""
    suspicion: str
    """What that points at; empty when nothing diverges."""
    map: tuple[NamePair, ...]
    """Names that were compared with each other."""
    alone: dict[str, str]
    """Names that have no partner, and on which side."""
    told: tuple[str, ...]
    """What deserves to be known about the comparison."""
    others: dict[str, bool]
    """Whether the same passes by each way to judge."""
    bytes_read: int
    """Bytes of values that were read."""
    seconds: float
    """What it took."""

    @property
    def passed(self) -> bool:
        """Whether every check passes, and there is one."""
        return bool(self.checks) and all(check.passed for check in self.checks)
