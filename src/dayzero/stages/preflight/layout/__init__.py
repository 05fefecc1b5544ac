"""Rules about layouts: what can be cut, and what fits."""
