"""Golden dump: what a model computed for stated tokens, module by module, in files that need no model to be compared.

A dump is a folder. Each rank writes `rank-NNNNN.json` (`RankDump`; `finished` is set last) and
`rank-NNNNN-PPPPP.safetensors`. Each of these part files is complete or not there, and says in its metadata which
entries it holds and which passes begin in it: what was finished can be read whatever became of the rest.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from .base import Column, Noun
from .layout import Layout

GOLDEN_FORMAT = 2
"""Version of the format."""

What = Literal["input", "output", "router", "logits", "gradient", "parameter", "logprobs"]
Kind = Literal["model", "embedding", "layer", "attention", "feed_forward", "experts", "router", "norm", "linear",
               "head", "other"]
Mode = Literal["whole", "sampled", "statistics"]
PADDING = -1
"""Sequence of a row that is padding; token of a row whose token is not known."""


class Rows(Noun, frozen=True, kw_only=True, gc=False):
    """Rows of the token axis that follow each other in one sequence."""

    sequence: int
    """Number of the sequence, counted over all ranks; -1: padding."""
    first: int
    """Position in the sequence of the first of them, from 0; of padding 0."""
    count: int
    """How many."""


class Pass(Noun, frozen=True, kw_only=True, gc=False):
    """One run of the model, forward or backward."""

    number: int
    """From 0, in the order in which they began on the rank."""
    phase: Literal["prefill", "decode", "backward", "step"]
    """decode: each sequence goes on from what is cached; step: an optimiser's."""
    shape: tuple[int, ...]
    """[batch, length] of the tokens that it was called with; rows are these, one behind the other."""
    rows: tuple[Rows, ...]
    """Which row of the token axis is what, in order; empty: not known."""
    tokens: Column
    """Token id of each row; -1: not known. Empty: none is known."""


class Held(Noun, frozen=True, kw_only=True, gc=False):
    """What a rank holds along one axis that several ranks share."""

    axis: int
    """Axis of `Entry.shape`."""
    size: int
    """Extent of the whole tensor along it."""
    ranges: tuple[tuple[int, int], ...]
    """[first, end) in the whole, one behind the other in the part."""

    @property
    def indices(self) -> NDArray[np.int64]:
        """In the whole, of everything that the rank holds."""
        return np.concatenate([np.arange(first, end, dtype=np.int64) for first, end in self.ranges]
                              or [np.empty(0, np.int64)])


class Sample(Noun, frozen=True, kw_only=True, gc=False):
    """Which values were kept. They are chosen by (sequence, position) and by the column in the whole tensor, so that
    dumps made apart hold the same ones."""

    rows: Column | None
    """Indices along the first axis, rising; None: all."""
    columns: Column | None
    """Indices along the last axis, rising; None: all."""


class Statistics(Noun, frozen=True, kw_only=True, gc=False):
    """Of all values of a tensor, in double precision; without NaN and infinities unless said."""

    count: int
    """Values, all of them."""
    nan: int
    """Of these: not a number."""
    inf: int
    """Of these: infinite."""
    minimum: float
    """Smallest; 0 when there is none."""
    maximum: float
    """Largest; 0 when there is none."""
    mean: float
    """Mean."""
    rms: float
    """Root of the mean square."""
    max_abs: float
    """Largest magnitude."""


class Entry(Noun, frozen=True, kw_only=True, gc=False):
    """One tensor that a module took or gave."""

    name: str
    """Path of the module as the model names it, empty for the model itself; of a parameter and its gradient its own."""
    module: str
    """Class of the module."""
    kind: Kind
    """What the module is, by its structure."""
    what: What
    """input, output; router: a decision; logits: of the whole model; gradient: of the loss for a parameter (slot
    empty) or an output; parameter: its value; logprobs: of the tokens that were given."""
    slot: str
    """Which of several: the path in the arguments or the output, such as `0` or `hidden_states`, and `@` and the texts
    among the arguments where there are some; of a router `scores`, `indices` or `weights`; of logprobs `token`, `top`
    or `top_indices`."""
    pass_no: int
    """Number of the pass."""
    call: int
    """How often the module had been called before in the pass, with the same texts among its arguments."""
    order: int
    """Place in the order of execution on the rank."""
    axes: tuple[str, ...]
    """`token`: rows of the pass, or `rows`; `batch`, `position`, `channel` (the last one); `dimN` where it cannot be
    told; `complex`: real and imaginary part."""
    shape: tuple[int, ...]
    """As this rank has it, whatever was kept."""
    dtype: str
    """By safetensors, as computed; values are stored in it."""
    statistics: Statistics
    """Of all values."""
    rows: tuple[Rows, ...] = ()
    """Rows of its `token` axis where they are not those of the pass."""
    held: tuple[Held, ...] = ()
    """Axes of which this rank has a part; for all others it has the whole."""
    summed: tuple[str, ...] = ()
    """Degrees (tp, ep, dp) over whose ranks values must be added up; empty: nothing is left to add."""
    key: str = ""
    """Name in the part file; empty: values were not kept."""
    digest: str = ""
    """Of the bytes of the values that were kept, `algorithm:hex`; see `runtime.golden.digests`."""
    sample: Sample | None = None
    """Which values were kept; None: all of them."""

    @property
    def kept_shape(self) -> tuple[int, ...]:
        """Shape of what is stored."""
        shape = list(self.shape)
        if self.sample is not None and self.sample.rows is not None:
            shape[0] = len(self.sample.rows)
        if self.sample is not None and self.sample.columns is not None:
            shape[-1] = len(self.sample.columns)
        return tuple(shape)


class Origin(Noun, frozen=True, kw_only=True):
    """What was run, and by what."""

    release: str
    """Name of the release, or of the class of a model without one."""
    digests: dict[str, str]
    """SHA-256 of the files that say what it is (config, index), by name; empty: they are not known."""
    engine: str
    """What ran it."""
    libraries: dict[str, str]
    """Versions."""
    dtype: str
    """Most frequent dtype of its parameters, by safetensors."""
    device: str
    """Where it ran."""
    notes: tuple[str, ...] = ()
    """What deserves to be known about the recording."""


class RankDump(Noun, frozen=True, kw_only=True):
    """What one rank recorded; entries and passes are in its part files."""

    format: int = GOLDEN_FORMAT
    """Version of the format."""
    finished: bool
    """Whether everything was recorded; not so of one that goes on or was interrupted."""
    origin: Origin
    """What ran."""
    layout: Layout
    """Degrees of the run."""
    rank: int
    """Global rank."""
    place: dict[str, int]
    """Index of the rank for each of tp, pp, ep, dp, cp."""
    seed: int
    """Seed of everything random, that of the sample too."""
    mode: Mode
    """whole, sampled, or statistics only."""
    parts: tuple[str, ...] = ()
    """Names of the part files, in order; set when it is finished."""
    failure: str = ""
    """Why recording ended early; empty: it did not, or there was no time to say so."""
