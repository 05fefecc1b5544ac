"""All planted faults."""

from tests.faults.cases import deepseek_v3, gemma, glm_moe_dsa, gpt_oss, late, llama, qwen3_moe, recurrent, several
from tests.faults.fault import Fault

LATE: tuple[Fault, ...] = late.FAULTS
"""Those that nobody who wrote the judges has seen."""
FAULTS: tuple[Fault, ...] = (
    sum((each.FAULTS for each in (llama, qwen3_moe, deepseek_v3, gpt_oss, recurrent, gemma, glm_moe_dsa, several)), ())
    + LATE
)
