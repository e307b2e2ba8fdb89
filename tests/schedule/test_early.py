"""Loads that follow products: which are issued before the wait, and which stay."""
from __future__ import annotations

import re

import pytest

import tilejit
from tilejit.runtime import ptxas

tl = tilejit.language


@tilejit.kernel
def product(a_desc, b_desc, c_desc, x, flag, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, HOW: tl.constexpr):
    """A product plus a vector, which is loaded in one of several ways after the loop."""
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, tl.cdiv(K, BK)):
        acc = tl.dot(a_desc.load([0, k * BK]), b_desc.load([0, k * BK]).T, acc)
    cols = tl.arange(0, BN)
    if HOW == "vector":
        acc += tl.load(x + cols, cols < K, other=0.0)[None, :]
    elif HOW == "volatile":
        acc += tl.load(x + cols, volatile=True)[None, :]
    elif HOW == "fetched again":
        acc += tl.load(x + cols, cache_modifier=".cv")[None, :]
    elif HOW == "acquired":
        tl.atomic_add(flag, 1, sem="acquire")
        acc += tl.load(x + cols)[None, :]
    elif HOW == "stored":
        tl.store(x + cols, tl.sum(acc, 0))
        acc += tl.load(x + cols)[None, :]
    elif HOW == "matrix":
        acc += tl.load(x + tl.arange(0, BM)[:, None] * BN + cols[None, :])
    elif HOW == "after a store":
        c_desc.store([0, 0], acc.to(c_desc.dtype))
        acc += tl.load(x + cols, cols < K, other=0.0)[None, :]
    elif HOW == "two vectors":
        acc = acc * tl.load(x + cols, cols < K, other=0.0)[None, :] + tl.load(x + K + cols, cols < K, other=0.0)[None, :]
    elif HOW == "computed":
        acc += tl.load(x + tl.max(acc, 0).to(tl.int32))[None, :]
    c_desc.store([0, BN], acc.to(c_desc.dtype))


def compiled(how: str, bm: int = 64, bn: int = 128):
    return product.compile(f"desc<bf16[{bm}x64]>", f"desc<bf16[{bn}x64]>", f"desc<bf16[{bm}x{bn}]>", "*fp32", "*int32",
                           "int32", BM=bm, BN=bn, BK=64, HOW=how, num_warps=4)


@pytest.mark.parametrize("how, early", [
    ("vector", True), ("after a store", True), ("volatile", False), ("fetched again", False), ("acquired", False),
    ("stored", False), ("matrix", False), ("computed", False)])
def test_which_loads_are_early(how, early):
    kernel = compiled(how)
    ops = re.findall(r"\b(dot_wait|load|convert)\b", str(kernel.scheduled))
    assert ("load" in ops[:ops.index("dot_wait")]) == early
    assert ("load" in ops[ops.index("dot_wait"):]) != early
    assert ("is issued while the last products are computed" in kernel.report()) == early


def test_no_more_than_there_are_registers_for():
    """A thread has 128 sums: beside them there is room for one row's numbers, not for those of two."""
    ops = re.findall(r" = (dot_wait|load|convert) ", str(compiled("two vectors", 64, 256).scheduled))
    assert ops == ["load", "convert", "load", "dot_wait", "convert"]


@pytest.mark.skipif(not (ptxas.find_ptxas() and ptxas.find_tool("nvdisasm")), reason="needs ptxas and nvdisasm")
def test_the_assembler_leaves_them_there():
    """Nothing is read from memory between the last wait for products and the first store."""
    sass = compiled("vector").sass()
    behind = sass[sass.index("WARPGROUP.DEPBAR.LE gsb0, 0x0"):sass.index("UTMASTG")]
    assert "LDG" not in behind and "LDS" not in behind
