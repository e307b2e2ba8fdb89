"""Known miscompiles of assemblers: the table finds its own reproducers and not the forms that avoid them, and no kernel
of ours has one. (What the reproducer of registers in flight becomes in machine code: kernels/test_sass_registers.py.)"""
import pytest

import tilejit
import tilejit.language as tl
from tilejit.runtime import miscompiles, ptxas
from tilejit.runtime.miscompiles import MISCOMPILES

needs_ptxas = pytest.mark.skipif(ptxas.find_ptxas() is None, reason="no ptxas here")

#: Name of the row -> text with the form, and the same with the one that avoids it. A program that ptxas 13.0 gets
#: wrong on the first row's text needs a few hundred of these under register pressure.
FORMS = {
    "mad-wide-by-one": ("mad.wide.s32 %rd2, %r1, 1, %rd1;", "cvt.s64.s32 %rd3, %r1;\nadd.s64 %rd2, %rd1, %rd3;"),
    "minimum-of-negations": (
        "neg.s32 %r3, %r1;\nneg.s32 %r4, %r2;\nmax.s32 %r5, %r3, %r4;",
        "neg.s32 %r3, %r1;\nprmt.b32 %r6, %r3, 0, 0x3210;\nmax.s32 %r5, %r6, %r2;"),
    "compared-minimum-of-16-bits": (
        "min.s16 %h3, %h1, %h2;\nsetp.eq.s16 %p1, %h3, %h2;",
        "cvt.s32.s16 %r1, %h1;\ncvt.s32.s16 %r2, %h2;\nmin.s32 %r3, %r1, %r2;\ncvt.u16.u32 %h3, %r3;\n"
        "setp.eq.s16 %p1, %h3, %h2;"),
    "widened-copy-of-16-bits": (
        "@%p bra ELSE;\ncvt.u32.u16 %r1, %h1;\nmin.u32 %r2, %r1, %r3;\ncvt.u16.u32 %h2, %r2;\nbra END;\nELSE:\n"
        "mov.b16 %h2, %h1;\nEND:",
        "@%p bra ELSE;\ncvt.u32.u16 %r1, %h1;\nmin.u32 %r2, %r1, %r3;\ncvt.u16.u32 %h2, %r2;\nbra END;\nELSE:\n"
        "cvt.u32.u16 %r4, %h1;\nprmt.b32 %r5, %r4, 0, 0x3210;\ncvt.u16.u32 %h2, %r5;\nEND:"),
    "late-copy-to-wgmma": tuple(
        "LOOP:\nld.shared.v4.b32 {%b0, %b1, %b2, %b3}, [%x];\nwgmma.wait_group.sync.aligned 0;\n"
        + "".join(copy.format(i=i) + "\n" for i in range(4)) + "wgmma.fence.sync.aligned;\n"
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f0, %f1, %f2, %f3}, {%a0, %a1, %a2, %a3}, %d, 1, 1, 1, 0;\n"
        "wgmma.commit_group.sync.aligned;\n@%p bra LOOP;"
        for copy in ("mov.b32 %a{i}, %b{i};", "prmt.b32 %a{i}, %b{i}, 0, 0x3210;")),
}


@pytest.mark.parametrize("row", MISCOMPILES, ids=lambda row: row.name)
def test_the_table_finds_its_form(row):
    wrong, right = FORMS[row.name]
    assert [r.name for r, _ in miscompiles.found(wrong, row.first)] == [row.name]
    assert miscompiles.found(right, row.first) == [] and miscompiles.found(wrong, row.fixed) == []
    lines = wrong.splitlines()
    assert lines[next(row.lines(wrong)) - 1].startswith(("mad.wide", "mov.b32 %a0", "max.s32", "setp.eq", "mov.b16"))


def test_a_copy_of_what_was_computed_behind_the_wait_is_fine():
    text = FORMS["late-copy-to-wgmma"][0].splitlines()
    text[1], text[2] = text[2], text[1]
    assert miscompiles.found("\n".join(text), (13, 0)) == []


@tilejit.kernel
def bytes_kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + (tl.arange(0, BLOCK) * 3) % n
    tl.store(y + i, tl.load(x + i))


@pytest.mark.parametrize("dtype", ["fp8e5", "int8", "uint8"])
def test_addresses_of_bytes_add_without_a_product(dtype):
    made = bytes_kernel.compile(f"*{dtype}", f"*{dtype}", "int32", BLOCK=1024)
    assert "cvt.s64.s32" in made.ptx and all(not list(row.lines(made.ptx)) for row in MISCOMPILES)


@tilejit.kernel
def least_of_negations(x, y, k, KIND: tl.constexpr):
    v = tl.load(x + tl.arange(0, 16)[:, None] * 32 + tl.arange(0, 32)[None, :])
    if KIND == 0:
        tl.store(y, tl.max(tl.reshape(-v, (512,)), 0))
    elif KIND == 1:
        total = tl.xor_sum(v, 1)
        more = total
        for _ in range(k):
            more += tl.max(v, 1)
        tl.store(y, tl.min(total - more, 0))
    else:
        turned = -v
        for _ in range(k):
            turned = tl.where(turned > 3, turned, v)
        tl.store(y, tl.max(tl.associative_scan(tl.minimum(turned, tl.trans(tl.reshape(-v, (32, 16)))), 0, tl.maximum)))


@tilejit.kernel
def at_the_limit(x, y, limit):
    i = tl.arange(0, 256)
    v = tl.load(x + i)
    tl.store(y + i, (tl.minimum(v, 2) == 2) | (tl.maximum(v, limit) != v))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16"])
def test_short_integers_are_compared_with_their_limit(dtype):
    made = at_the_limit.compile(f"*{dtype}", "*int8", dtype)
    assert not [row.name for row in MISCOMPILES if list(row.lines(made.ptx))]


@needs_ptxas
@pytest.mark.parametrize("kind", range(3))
@pytest.mark.parametrize("dtype", ["int32", "uint32"])
def test_signs_of_negated_operands_of_minima_are_kept(kind, dtype):
    """In each form of which ptxas 13.0 lost one: moved about, carried by a loop, folded."""
    made = least_of_negations.compile(f"*{dtype}", f"*{dtype}", "int32", KIND=kind, num_warps=1)
    assert made.resources.clean and "prmt.b32" in made.ptx
    assert not [row.name for row in MISCOMPILES if list(row.lines(made.ptx))]


@needs_ptxas
def test_what_an_author_writes_is_a_remark(monkeypatch):
    text = (".version 8.0\n.target sm_90a\n.address_size 64\n.visible .entry k(.param .u64 p, .param .u32 n)\n{\n"
            ".reg .b64 %rd<3>;\n.reg .b32 %r1;\n.reg .b16 %h;\nld.param.u64 %rd1, [p];\nld.param.u32 %r1, [n];\n"
            "mad.wide.s32 %rd2, %r1, 1, %rd1;\nmov.b16 %h, 0;\nst.global.u8 [%rd2], %h;\nret;\n}\n")
    monkeypatch.setattr(ptxas, "release", lambda: (13, 0))
    _, resources = ptxas.assemble(text)
    (message,) = resources.messages
    assert message.code == "mad-wide-by-one" and message.ptx_line == 11 and "add.s64" in str(message)
    monkeypatch.setattr(ptxas, "release", lambda: (13, 5))
    assert ptxas.assemble(text)[1].clean


@tilejit.kernel
def least_bytes(x, y, out, n, BLOCK: tl.constexpr):
    """What ptxas 13.0 got wrong: the bytes of y in place of smaller ones of x."""
    i = tl.arange(0, BLOCK)
    v = tl.load(x + i).to(tl.uint8)
    w = tl.load(y + 1 + i)
    if n > 0:
        v = tl.minimum(v, w)
    tl.store(out + i, tl.flip(v, 0) & 3)


def test_joined_bytes_are_no_copies_of_16_bits():
    made = least_bytes.compile("*int8", "*uint8", "*uint8", "int32", BLOCK=2048)
    assert "min.u32" in made.ptx and not list(miscompiles._widened_copies(made.ptx))


@pytest.mark.gpu
def test_joined_bytes_on_a_gpu():
    torch = pytest.importorskip("torch")
    x = torch.randint(-128, 128, (2048,), dtype=torch.int8, device="cuda")
    y = torch.randint(0, 256, (2049,), dtype=torch.uint8, device="cuda")
    out = torch.empty(2048, dtype=torch.uint8, device="cuda")
    least_bytes[(1,)](x, y, out, 1, BLOCK=2048)
    assert torch.equal(out, torch.minimum(x.view(torch.uint8), y[1:]).flip(0) & 3)
