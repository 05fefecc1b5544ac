"""Metamorphic tests: what has to hold for any correct model, so that no reference is needed.

`subject` runs the model and knows its noise; `sequences`, `caching`, `positions` and `experts` each try a few
relations; `rank` is one rank's part. What must be different is tried as well: a test in which nothing can fail shows
nothing.
"""
