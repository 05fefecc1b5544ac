"""How a long-running stage tells what it is doing, without knowing who listens."""

from __future__ import annotations


class Progress:
    """Receives what a stage is doing. This one listens to nothing; the command line has one that draws."""

    def update(self, text: str, done: float = 0.0, total: float = 0.0) -> None:
        """`text` says what is being done now; `done` of `total` (any unit; 0: unknown) how far it is."""

    def note(self, text: str) -> None:
        """`text` deserves to be known, also when nothing comes of what is being done."""


SILENT = Progress()
