"""Sharding: a model's weights and work shared by ranks, whatever its code is.

Rules are derived (`derive`), a rank's part of every parameter follows from them (`plan_shares`), and is put into the
model (`install`), whose forward is then right on all ranks together. Replicas that share experts or weights run in step
(`Lockstep`).
"""

from dayzero.runtime.mesh import Place, refusal

from . import operators as operators  # says how parts are computed with
from .groups import Group
from .install import install
from .lockstep import Lockstep
from .mesh import Mesh
from .rules import Rules, derive
from .sharded import Sharded, is_sharded, like, local, whole
from .shares import Shares, plan_shares

__all__ = ["Group", "Lockstep", "Mesh", "Place", "Rules", "Sharded", "Shares", "derive", "install", "is_sharded",
           "like", "local", "plan_shares", "refusal", "whole"]
