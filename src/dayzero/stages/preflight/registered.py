"""Every module of rules, imported because it registers them."""

# ruff: noqa: F401
from __future__ import annotations

from .code import rules as code_rules
from .code import support
from .config import keys, rope
from .config import rules as config_rules
from .config import values as config_values
from .engine import rules as engine_rules
from .files import rules as files_rules
from .layout import layouts, memory
from .quant import rules as quant_rules
from .quant import scales, schemes
from .values import rules as values_rules
from .weights import coverage, dtypes, mtp, stored
from .weights import rules as weights_rules
