"""The machine code of the kernels, read with nvdisasm (no GPU needed): which units they use, and no local memory."""
from __future__ import annotations

import re

import pytest

from tilejit.kernels.add import add_kernel
from tilejit.kernels.planning import LARGE as TILES
from tilejit.kernels.product.plain import matmul_kernel
from tilejit.kernels.rows.softmax import softmax_kernel
from tilejit.kernels.way import Way
from tilejit.runtime import ptxas

pytestmark = [pytest.mark.one_schedule,        # nothing is launched
              pytest.mark.skipif(not (ptxas.find_ptxas() and ptxas.find_tool("nvdisasm")),
                                 reason="needs ptxas and nvdisasm: install the extra `test`")]


def opcodes(text: str) -> dict[str, int]:
    """Opcode without modifiers -> number of instructions."""
    found: dict[str, int] = {}
    for name in re.findall(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?\w+\s+)?(\w+)", text, re.MULTILINE):
        found[name] = found.get(name, 0) + 1
    return found


def matmul_sass(dtype: str, tiles: Way, bias: str | None = None, activation: str | None = None, **options: bool) -> str:
    """The machine code of the matmul of A row-major and B column-major."""
    bk = tiles.k_bytes // {"bf16": 2, "fp8e4nv": 1, "fp32": 4}[dtype]
    return matmul_kernel.compile(
        f"desc<{dtype}[{tiles.m}x{bk}]>", f"desc<{dtype}[{tiles.n}x{bk}]>", f"desc<bf16[{tiles.m}x{tiles.n}]>", bias,
        "int32", "int32", "int32", BM=tiles.m, BN=tiles.n, BK=bk, GROUP=8, A_ROWS=True, B_ROWS=False, ACTIVATION=activation,
        **tiles.options(), **options).sass()


@pytest.mark.parametrize("dtype", ["bf16", "fp8e4nv", "fp32"])
def test_matmul(dtype):
    """Four products a K block of 128 bytes, two TMA loads, TMA stores, registers moved between the roles."""
    found = opcodes(matmul_sass(dtype, TILES[0]))
    math = "QGMMA" if dtype == "fp8e4nv" else "HGMMA"
    assert found[math] == 4 and found["UTMALDG"] == 2 and found["UTMASTG"] and found["USETMAXREG"] == 2
    assert "LDL" not in found and "STL" not in found
    # The K loop holds no shared-memory traffic of its own: operands go from TMA to the tensor cores.
    assert "LDS" not in found and "LDSM" not in found


@pytest.mark.parametrize("store_role, last", [(False, "UTMASTG"), (True, "STSM")])
@pytest.mark.parametrize("activation, most", [(None, 2.8), ("relu", 3.8), ("silu", 7.9), ("gelu", 11)])
def test_epilogue(activation, most, store_role, last):
    """Instructions an element with a bias, from the last wait for products to the last store, or the last tile handed over;
    one approximate function for GELU, and no access to memory but stores."""
    text = matmul_sass("bf16", TILES[0], bias="*bf16", activation=activation, store_role=store_role)
    behind = text[text.index("WARPGROUP.DEPBAR.LE gsb0, 0x0"):]
    found = opcodes(behind[:behind.index("\n", behind.rindex(last))])
    assert sum(found.values()) <= 128 * most, found
    assert found.get("MUFU", 0) == 128 * {"silu": 2, "gelu": 1}.get(activation, 0)
    assert not {"LDG", "LDS", "LDL", "STL"} & set(found) and found["STSM"] == 16


@pytest.mark.parametrize("store_role", [False, True])
@pytest.mark.parametrize("tiles", TILES[:4])
def test_producers_keep_to_their_registers(tiles, store_role):
    """What comes after giving registers back, 40 or 24 being left, uses few; with a store role it stores."""
    text = matmul_sass("bf16", tiles, store_role=store_role)
    consumers, others = text[text.index("TRY_ALLOC"):].split("DEALLOC")
    assert max(int(r) for r in re.findall(r"\bR(\d+)\b", others)) < 24
    assert ("UTMASTG" in others) == store_role and ("UTMASTG" in consumers) != store_role and "UTMALDG" in others


def test_rows():
    """16-byte accesses to global memory, and no local memory."""
    softmax = softmax_kernel.compile("*bf16", "*bf16", 2048, 2048, 2048, BLOCK=2048, num_warps=4).sass()
    add = add_kernel.compile("*fp32", "*fp32", "*fp32", 1 << 20, BLOCK=1024).sass()
    for text, loads in ((softmax, 2), (add, 4)):
        assert len(re.findall(r"LDG\.E\.128", text)) == loads and "STG.E.128" in text
        assert not {"LDL", "STL"} & set(opcodes(text))
