"""A server of a model behind the usual HTTP interface of completions, asked for the logprobs of given tokens. No torch.

    endpoint = Endpoint("http://host:8000/v1")
    scored = endpoint.score(tokens, top=5)

Servers differ in how they give logprobs of a prompt: `ways` has each of the forms, and the first one that a server
answers as it should is used.
"""

from .client import Endpoint, Scored

__all__ = ["Endpoint", "Scored"]
