"""How the next token is chosen."""

from __future__ import annotations

import msgspec


class Sampling(msgspec.Struct, frozen=True):
    """Temperature 0 takes the likeliest. Above, what is left after `top_k` and then `top_p` is drawn from, by
    probability."""

    temperature: float = 0.0
    """What logits are divided by."""
    top_k: int = 0
    """Likeliest tokens that are left; 0 leaves all."""
    top_p: float = 1.0
    """The likeliest tokens whose probabilities together reach this are left (Holtzman et al., arXiv:1904.09751)."""
    seed: int = 0
    """With the token's position and id it makes the random number: a sequence that is computed again, on other ranks or
    beside other sequences, gets the same tokens."""
