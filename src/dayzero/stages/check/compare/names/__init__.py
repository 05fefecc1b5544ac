"""Which names of two dumps mean the same: derived from paths, shapes and order, shown, and overridden by a file."""

from .derive import derive, shapes_of
from .names import NameMap, Shape, read_map

__all__ = ["NameMap", "Shape", "derive", "read_map", "shapes_of"]
