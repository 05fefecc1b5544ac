"""The timeline: what computed, loaded, offloaded, communicated and waited at which time, and what of it was hidden.

    with Timeline(folder / "timeline-0.json", rank=0) as timeline, Background("loads", timeline=timeline) as loads:
        coming = loads.submit(read, layer + 1, category="load", nbytes=n)
        with timeline.span("compute", layer=layer):
            ...
        with timeline.span("wait"):
            weights = coming.result()
    merge(files, folder / "timeline.json")      one trace for Perfetto or chrome://tracing
    overlap(files)                              seconds and hidden seconds of loads, offload traffic and collectives
"""

from __future__ import annotations

from .background import Background, Stream, Work
from .merging import merge, overlap
from .recorder import OFF, Span, Timeline
from .shares import CATEGORIES

__all__ = ["CATEGORIES", "OFF", "Background", "Span", "Stream", "Timeline", "Work", "merge", "overlap"]
