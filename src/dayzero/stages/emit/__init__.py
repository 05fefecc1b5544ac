"""emit: the plan as files to work with: plan.json, launch scripts for engines, and a manifest of them."""

from .bundle import emit
from .overview import overview

__all__ = ["emit", "overview"]
