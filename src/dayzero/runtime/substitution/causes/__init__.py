"""Hypotheses of what a run does instead of what the reference does: each is tried, and none is about a model.

    values      numbers, switches and names that a module keeps or reads from its config
    weights     what a parameter may be instead: moved, cut, scaled, rounded, somebody else's
    arguments   masks, rotary tables and states that a module is given
    operators   what its own code does between its children
"""
