"""Measured times of operators: tables of an installed package, and a user's own, as points that are interpolated.

    tables.toml   which file is which operator, and which folder which device        mapping.py reads it
    package.py    where the tables are; reading.py a file into slices, cached; own.py a user's own tables
    grid.py       a slice: points of one operator, interpolated in its own axes
    library.py    the slices for an operator on a device under an engine, nearest first
"""

from .grid import Found, Slice
from .library import Library, library
from .package import Source, source

__all__ = ["Found", "Library", "Slice", "Source", "library", "source"]
