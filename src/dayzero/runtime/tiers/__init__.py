"""Weights on device, host and disk: a model runs in less memory than it needs.

    tiers = Tiers(model, checkpoint, {}, Budget(host=1_500_000_000))
    ...                      load what is not in tiers.owned
    tiers.install()
    model.generate(...)
    print(tiers.statistics())
"""

from .tiers import POLICIES, Tiers

__all__ = ["POLICIES", "Tiers"]
