"""Runs a reference with what another run had at every border of its modules, so that each place shows its own error.

    reference    a release in one process, in f32, with plain operators
    places       what is at a border, and what a run had there
    borders      visits every tensor that modules take and give
    substituted  the reference once over a sequence: noted, then replaced
    trial        one module again, with something changed
    causes/      what may be changed
    layers       one layer alone, in its own memory
    heard        what a reference computes, as if it was recorded
    everywhere   the whole reference with the same change in all modules that are alike
    runner       all of it, for a release
"""

from .borders import Call, Given
from .everywhere import Everywhere, Wide
from .heard import Heard, Inputs
from .layers import Layers
from .places import Held, Place, Recorded
from .runner import Runner, runner, threads_for
from .substituted import Computed, Perturbation
from .trial import Case, Hypothesis, Trial

__all__ = ["Call", "Case", "Computed", "Everywhere", "Given", "Heard", "Held", "Hypothesis", "Inputs", "Layers",
           "Perturbation", "Place", "Recorded", "Runner", "Trial", "Wide", "runner", "threads_for"]
