"""Layout: how many ways a model is cut, and along what."""

from __future__ import annotations

import msgspec

from dayzero.errors import LayoutError

from .base import Noun

DEGREES = ("tp", "pp", "ep", "dp", "cp")
_SPELLING = "write it like tp=2,pp=1 with tp, pp, ep, dp, cp"
_DIGITS = 7
_SHORT = 40
_ALONE = "one device"


class Layout(Noun, frozen=True, kw_only=True):
    """Parallel degrees. tp * pp * dp devices; ep spreads whole experts over tp * dp of them."""

    tp: int = 1
    """Tensor parallel: ranks that share each layer's matrices."""
    pp: int = 1
    """Pipeline parallel: stages that each hold some of the layers."""
    ep: int = 1
    """Expert parallel: groups of whole experts; an expert's width is split max(1, tp / ep) ways."""
    dp: int = 1
    """Data parallel: replicas of the attention part (and of all, when ep is 1), each with its own requests."""
    cp: int = 1
    """Context parallel: ranks, out of the tp group, that share one sequence's tokens."""
    attention_tp: int = 0
    """Ranks that share attention; 0: all tp ranks, and `tp` itself becomes 0, so that equal layouts are equal."""

    def __post_init__(self) -> None:
        bad = [f"{name}={getattr(self, name)}" for name in DEGREES if getattr(self, name) < 1]
        if bad or self.attention_tp < 0:
            raise LayoutError(f"degrees start at 1: {', '.join(bad) or f'attention_tp={self.attention_tp}'}",
                              "leave out what is not used, or write 1")
        if (self.tp * self.dp) % self.ep:
            raise LayoutError(f"ep={self.ep} does not divide the tp*dp={self.tp * self.dp} ranks of a stage",
                              "take an ep that divides tp*dp")
        if self.tp % self.attention_degree:
            raise LayoutError(f"attention_tp={self.attention_tp} does not divide tp={self.tp}",
                              "take an attention_tp that divides tp, or leave it out")
        if self.attention_tp == self.tp:
            msgspec.structs.force_setattr(self, "attention_tp", 0)

    @property
    def attention_degree(self) -> int:
        """Ranks that share attention."""
        return self.attention_tp or self.tp

    @property
    def expert_tp(self) -> int:
        """Ways that one expert's width is split."""
        return max(1, self.tp // self.ep)

    @property
    def world_size(self) -> int:
        """Devices that the layout takes."""
        return self.tp * self.pp * self.dp

    @property
    def text(self) -> str:
        """`tp=2 pp=1 dp=2`: the degrees above 1, or `one device`."""
        used = {name: getattr(self, name) for name in DEGREES if getattr(self, name) > 1}
        if self.attention_degree != self.tp:
            used["attention_tp"] = self.attention_tp
        return " ".join(f"{name}={degree}" for name, degree in used.items()) or _ALONE

    def check_world(self, world_size: int) -> Layout:
        """Itself. Raises LayoutError when it does not take exactly that many devices."""
        if self.world_size != world_size:
            raise LayoutError(f"tp*pp*dp = {self.tp}*{self.pp}*{self.dp} = {self.world_size} devices, "
                              f"but there are {world_size}",
                              "choose degrees that multiply to the number of devices, or change the cluster")
        return self

    @classmethod
    def parse(cls, text: str) -> Layout:
        """`"tp=2,pp=1"` -> Layout; also what `text` gives; none: one device. Raises LayoutError with what is wrong."""
        degrees: dict[str, int] = {}
        given = "" if text == _ALONE else text
        for part in filter(None, given.replace(" ", ",").split(",")):
            name, _, number = part.partition("=")
            if name not in (*DEGREES, "attention_tp") or not number.isdecimal():
                raise LayoutError(f"not a degree: {_short(part)!r}", _SPELLING)
            if len(number) > _DIGITS:
                raise LayoutError(f"{name}={_short(number)} is more than any cluster has", _SPELLING)
            if name in degrees:
                raise LayoutError(f"{name} is given twice: {_short(text)!r}",
                                  "give each degree once; another layout is another --layout")
            degrees[name] = int(number)
        return cls(**degrees)


def _short(text: str) -> str:
    """The text, or the start of a long one."""
    return text if len(text) <= _SHORT else f"{text[:_SHORT]}..."
