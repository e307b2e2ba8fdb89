"""Machine code of products with a first operand in registers: no instruction may write what a product in flight reads.

ptxas is told of registers in flight by wgmma.wait_group only; some of its versions lose track of them over the back edge
of a loop, without a message. This walks the K loop twice and follows the groups."""
from __future__ import annotations

import re
import subprocess

import pytest
from product_launches import weights

from tilejit.kernels.planning import WIDENED
from tilejit.runtime import miscompiles, ptxas

pytestmark = [pytest.mark.one_schedule,        # nothing is launched
              pytest.mark.skipif(not (ptxas.find_ptxas() and ptxas.find_tool("nvdisasm")),
                                 reason="needs ptxas and nvdisasm: install the extra `test`")]

PRODUCT = re.compile(r"[HQI]GMMA\.64x(\d+)x\d+\.\S+ R(\d+), R(\d+), ")
WAIT = re.compile(r"WARPGROUP\.DEPBAR\.LE gsb0, 0x(\d+)")
#: Opcodes whose first operand is no destination.
NO_RESULT = re.compile(r"(ST|RED|BAR|BRA|EXIT|SYNCS\.ARRIVE|WARPGROUP|ATOMS|ISETP|FSETP|PLOP|UTMA|NOP|MEMBAR|FENCE)")


def k_loop(sass):
    """The instructions of the innermost loop that has products."""
    lines = re.findall(r"^(\.L_x_\d+):|^\s+/\*[0-9a-f]{4,}\*/\s+(.*?)\s*;", sass[sass.index(".text."):], re.MULTILINE)
    labels = {name: i for i, (name, _) in enumerate(lines) if name}
    loops = [(labels[m[1]], i) for i, (_, text) in enumerate(lines)
             if (m := re.search(r"BRA.*`\((\.L_x_\d+)\)", text)) and labels[m[1]] < i]
    loops = [(a, b) for a, b in loops if any("GMMA" in text for _, text in lines[a:b])]
    a, b = min(loops, key=lambda x: x[1] - x[0])
    return [text for _, text in lines[a:b + 1] if text]


def written(text):
    """The registers that an instruction other than a product writes."""
    body = re.sub(r"^@!?U?P\d+ ", "", text)
    name, _, operands = body.partition(" ")
    if NO_RESULT.match(name) or not (m := re.match(r"(?:P\d, )?R(\d+)", operands)):
        return set()
    wide = 4 if ".128" in name else 2 if ".64" in name or ".WIDE" in name else 1
    return set(range(int(m[1]), int(m[1]) + wide))


def overwritten(loop):
    """Instructions that write registers of a product in flight; the loop is gone through twice."""
    groups, current, bad = [], set(), []
    for text in loop * 2:
        if m := PRODUCT.search(text):
            n, acc, a = map(int, m.groups())
            current |= set(range(acc, acc + n // 2)) | set(range(a, a + 4))
            if "gsb0" in text:
                groups, current = [*groups, current], set()
        elif m := WAIT.search(text):
            groups = groups[len(groups) - int(m[1], 16):] if int(m[1], 16) else []
        elif written(text) & set().union(current, *groups):
            bad.append(text)
    return bad


@pytest.mark.parametrize("bits, steps, zeros", [(8, 0, None), (8, 1, None), (4, 0, None), (4, 1, "*bf16")])
@pytest.mark.parametrize("t", WIDENED[128], ids=str)
def test_nothing_in_flight_is_written(t, bits, steps, zeros):
    loop = k_loop(weights(t, "bfloat16", bits, steps, bool(zeros), False, None).sass())
    products = [text for text in loop if PRODUCT.search(text)]
    assert products and all(PRODUCT.search(text) for text in loop if "GMMA" in text)
    assert overwritten(loop) == []


def test_the_check_checks():
    """A loop that converts into registers of the product in flight, and one that waits first."""
    product, wait = "HGMMA.64x16x16.F32.BF16 R24, R40, gdesc[UR4], R24, gsb0", "WARPGROUP.DEPBAR.LE gsb0, 0x0"
    assert overwritten(["HADD2 R41, R1, R2", product]) == ["HADD2 R41, R1, R2"]
    assert overwritten(["HADD2 R41, R1, R2", product, wait]) == []
    assert overwritten([wait, "LDS.128 R38, [R1]", product]) == []


def test_widening_is_cheap():
    """Two numbers take four (of 4 bits: three) instructions besides their load, and no conversion."""
    for bits, each in (8, 4), (4, 3):
        text = " ".join(re.sub(r"^@!?U?P\d+ ", "", x).split(" ")[0].split(".")[0] for x in k_loop(
            weights(WIDENED[128][0], "bfloat16", bits, 0, False, False, None).sass()))
        count = {name: text.split().count(name) for name in ("I2F", "F2FP", "LOP3", "HADD2", "PRMT", "IMAD", "SHF")}
        assert count["I2F"] == count["F2FP"] == 0 and count["HADD2"] == 64, (bits, count)
        assert sum(count.values()) <= each * 64 + 24, (bits, count)


def in_flight(copy):
    """A loop whose product is in flight over the back edge; the next first operand is loaded before the wait for it
    and copied behind."""
    acc = ", ".join(f"%f{i}" for i in range(32))
    product = ["wgmma.fence.sync.aligned;", f"wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {{{acc}}}, "
               "{%a0, %a1, %a2, %a3}, %d, 1, 1, 1, 0;", "wgmma.commit_group.sync.aligned;"]
    return "\n".join([
        ".version 8.0", ".target sm_90a", ".address_size 64", ".visible .entry k(.param .u64 out, .param .u32 n)",
        ".maxntid 128, 1, 1", "{", ".reg .f32 %f<32>; .reg .b64 %d, %o, %t; .reg .pred %p; .reg .b32 %a<4>; .reg .b32 %b<4>;",
        ".reg .b32 %s, %n, %i, %x, %y;", ".shared .align 1024 .b8 smem[32768];", "mov.u32 %s, smem;",
        "cvt.u64.u32 %d, %s;", "shr.u64 %d, %d, 4;", "ld.param.u32 %n, [n];", "ld.param.u64 %o, [out];",
        "mov.u32 %y, %tid.x;", "mad.lo.u32 %x, %y, 16, %s;", *(f"mov.f32 %f{i}, 0f00000000;" for i in range(32)),
        "ld.shared.v4.b32 {%a0, %a1, %a2, %a3}, [%x];", "mov.u32 %i, 0;", *product, "LOOP:", '.pragma "nounroll";',
        "add.u32 %x, %x, 2048;", "ld.shared.v4.b32 {%b0, %b1, %b2, %b3}, [%x];", "wgmma.wait_group.sync.aligned 0;",
        *(copy.format(i=i) for i in range(4)), *product, "add.u32 %i, %i, 1;", "setp.lt.u32 %p, %i, %n;", "@%p bra LOOP;",
        "wgmma.wait_group.sync.aligned 0;", "mad.wide.u32 %t, %y, 128, %o;",
        *(f"st.global.f32 [%t+{4 * i}], %f{i};" for i in range(32)), "ret;", "}"])


@pytest.mark.parametrize("copy", ["mov.b32 %a{i}, %b{i};", "prmt.b32 %a{i}, %b{i}, 0, 0x3210;"])
def test_the_known_miscompile(copy, tmp_path):
    """`late-copy-to-wgmma` of runtime/miscompiles.py: an affected ptxas loads into registers that are being read."""
    ptx = in_flight(copy)
    known = [row.name for row, _ in miscompiles.found(ptx, ptxas.release())]
    path = tmp_path / "k.cubin"
    path.write_bytes(ptxas.assemble(ptx)[0])
    sass = subprocess.run([ptxas.find_tool("nvdisasm"), "-g", str(path)], capture_output=True, text=True, check=True).stdout
    assert bool(overwritten(k_loop(sass))) == bool(known), (known, ptxas.version())
    assert not known or copy.startswith("mov")
