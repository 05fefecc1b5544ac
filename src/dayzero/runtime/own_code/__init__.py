"""Importing the code that a release brings along, inside the process that may run it (see `isolation`).

    entries(release)   which classes its auto_map names, if their files are here; needs no torch and runs nothing
    load(release)      imports them; only ever called in a confined process
"""

from .entries import Brought, Entries, entries, foreign, mistakable, named
from .importing import Loaded, load, place

__all__ = ["Brought", "Entries", "Loaded", "entries", "foreign", "load", "mistakable", "named", "place"]
