"""A simulated accelerator: a device type of its own on the host's memory, with a limit, counts of calls and operators
that it does not have. It tells what a model asks of a device; it says nothing about speed.

Set in the environment, before it is first used in a process, so that processes that are started have it too:

    DAYZERO_SIMULATED_DEVICES    devices, default 8
    DAYZERO_SIMULATED_MEMORY     bytes of each, such as 4GiB (the default), 500MB or 123456
    DAYZERO_SIMULATED_DENY       operators that it does not have, with commas: aten.topk,aten.mm/bf16
    DAYZERO_SIMULATED_FALLBACK   1: what it does not have runs on the host, with a warning (the default); 0: it raises
"""

from .backend import BACKEND, SimulatedBackend

__all__ = ["BACKEND", "SimulatedBackend"]
