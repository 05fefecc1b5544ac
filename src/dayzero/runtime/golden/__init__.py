"""Golden dumps on disk: read, whoever wrote them, and written. numpy and this program's own files only, without torch.

    with open_dump(folder) as dump:
        for item in dump.items:
            values = dump.read(item)

What lies in a dump was written elsewhere: every path, shape and number in it is looked at before it is used.
"""

from .dump import Dump, Item, noise_folders, open_dump
from .writer import Writer

__all__ = ["Dump", "Item", "Writer", "noise_folders", "open_dump"]
