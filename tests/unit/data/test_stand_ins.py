"""The table of stand-ins names things that exist, each once."""

from collections import Counter

import torch

from dayzero.data.stand_ins import stand_ins
from dayzero.ops import impl
from dayzero.runtime.stand_ins.finder import resolve


def test_every_adapter_and_operator_exists() -> None:
    table = stand_ins()
    for row in (*table.stand_in, *table.fallback):
        assert callable(resolve(row.adapter)), row
        if row.op:
            namespace, _, name = row.op.partition(".")
            assert namespace == impl.NAMESPACE
            assert hasattr(getattr(torch.ops, namespace), name), row


def test_every_name_is_there_once_and_below_a_known_package() -> None:
    table = stand_ins()
    names = Counter(name for row in table.stand_in for name in row.names)
    assert [name for name, times in names.items() if times > 1] == []
    for name in names:
        module, _, attribute = name.partition(":")
        assert module.partition(".")[0] in table.packages
        assert attribute.isidentifier()


def test_a_known_path_of_another_version_is_the_same_row() -> None:
    rows = {name: row for row in stand_ins().stand_in for name in row.names}
    assert rows["fla.modules.conv.short_conv:ShortConvolution"] is rows["fla.modules:ShortConvolution"]
    assert rows["flash_attn.flash_attn_interface:flash_attn_unpadded_func"].op == "dayzero.attention_varlen"
