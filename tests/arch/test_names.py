"""No model, device or engine has a name in the core: what is special about one is data or a plug-in."""

from __future__ import annotations

import re
from pathlib import Path

ALLOWED = ("data", "targets", "backends", "ops")
MODELS = ("llama", "qwen", "deepseek", "kimi", "mistral", "mixtral", "gemma", "gpt.?oss", "glm", "minimax", "smollm",
          "falcon", "bloom", "moonlight", "nemotron", "mimo", "inkling", "longcat", "dbrx", "phi", "ernie", "hunyuan")
DEVICES = ("a100", "h20", "h100", "h200", "h800", "b200", "b300", "gb200", "gb300", "mi3\\d\\dx", "ascend", "910b",
           "910c", "nvidia", "amd", "huawei", "tpu", "gaudi")
ENGINES = ("vllm", "sglang", "tensorrt", "trt.?llm", "megatron", "torchtitan", "llama.?cpp", "mindie",
           "(?<!torch\\._)dynamo")
EXAMPLE = re.compile(r"^    ## Example\n.*?(?=^    ## |^    \"\"\")", re.MULTILINE | re.DOTALL)
"""The real case in a rule's page, which names whom it happened to."""
FORBIDDEN = re.compile(rf"(?<![a-z])({'|'.join((*MODELS, *DEVICES, *ENGINES))})(?![a-z])", re.IGNORECASE)


def test_the_core_names_nobody(root: Path) -> None:
    source = root / "src" / "dayzero"
    found = [
        f"{path.relative_to(root)}:{number}: {match[0]}"
        for path in sorted(source.rglob("*"))
        if path.suffix in (".py", ".j2", ".html", ".js", ".css")
        and path.relative_to(source).parts[0] not in ALLOWED
        for number, line in enumerate(_without_examples(path).splitlines(), 1)
        for match in FORBIDDEN.finditer(line)
    ]
    assert not found, "\n".join(found)


def _without_examples(path: Path) -> str:
    return EXAMPLE.sub(lambda match: "\n" * match[0].count("\n"), path.read_text())


def test_the_pattern_would_see_one() -> None:
    for line in ('if "deepseek" in model_type:', "Llama-style rotary", "# as vLLM does", "H200 has", "qwen3_moe"):
        assert FORBIDDEN.search(line), line
    assert not FORBIDDEN.search("graph amplitude alphabet ph2000")
