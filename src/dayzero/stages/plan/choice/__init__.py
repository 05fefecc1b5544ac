"""Which: the front of trade-offs, limits, ranks, what other rates and sizes change, what decides against the rest."""
