"""The instruction table, the decoder and the executors know the same forms."""
from __future__ import annotations

import pytest

from tilejit.emulator import Program
from tilejit.emulator.decode import HANDLERS
from tilejit.errors import EmulatorError
from tilejit.ptx import isa, text


def test_every_form_has_a_decoder() -> None:
    from tilejit.emulator import handlers, handlers_memory  # noqa: F401

    assert {f.name for f in isa.FORMS} == set(HANDLERS)


@pytest.mark.parametrize("body", ["ld.global.b128 %q, [%rd1];", "st.global.b128 [%rd1], %q;", "mov.b128 %q, {%rd1, %rd1};",
                                  "atom.global.exch.b128 %q, [%rd1], %q;"])
def test_the_limits_of_a_form_are_refused(body: str) -> None:
    with pytest.raises(EmulatorError, match="b128|unknown or unsupported"):
        Program(".version 8.6\n.target sm_90a\n.address_size 64\n.visible .entry k() { .reg .b64 %rd<3>; .reg .b128 %q; "
                f"{body} ret; }}")


def test_every_external_has_an_executor() -> None:
    from tilejit.emulator.execute import EXECUTE

    Program(".version 8.0\n.target sm_90a\n.address_size 64\n.visible .entry k() { ret; }")
    assert set(EXECUTE) <= {f.name for f in isa.FORMS}


@pytest.mark.parametrize("opcode,name,mods", [
    ("ld.global.L1::evict_first.v4.f32", "ld", {"space": "global", "evict": "L1::evict_first", "vec": "v4", "type": "f32"}),
    ("ld.global.nc.b32", "ld.global.nc", {"type": "b32"}),
    ("atom.acq_rel.gpu.global.add.noftz.bf16", "atom", {"op": "add", "noftz": "noftz"}),
    ("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint",
     "cp.async.bulk.tensor.global.mbarrier::complete_tx::bytes", {"dim": "3d", "multicast": "multicast::cluster"}),
    ("wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16", "wgmma.mma_async.sync.aligned", {"shape": "m64n256k16"}),
    ("mbarrier.arrive.expect_tx.shared::cta.b64", "mbarrier.arrive.expect_tx.b64", {"space": "shared::cta"}),
    ("fence.proxy.async.shared::cta", "fence.proxy", {"kind": "async.shared::cta"}),
    ("shared.nonsense", "", {}), ("add.f32.f32", "", {}), ("ld.global.v3.f32", "", {})])
def test_lookup(opcode: str, name: str, mods: dict[str, str]) -> None:
    found = isa.lookup(opcode)
    if not name:
        assert found is None
        return
    assert found and found[0].name == name and mods.items() <= found[1].items()


def test_text_scopes_ranges_and_operands() -> None:
    module = text.parse("""
.version 8.0
.target sm_90a
.address_size 64
.file 1 "kernel.py"
.const .align 4 .b32 table[2] = {1, 0x10};
.visible .entry k(.param .align 64 .b8 m[128], .param .u32 n)
.maxntid 128, 1, 1
{
    .reg .b32 %r<3>;   // a comment; with { braces }
    .loc 1 12 0
    { .reg .b32 %r1; mov.u32 %r1, -5; }
L:  @!%p bra L; /* two
lines */ ld.param.u32 %r1, [n+4];
    st.global.v2.b32 [%rd+-8], {%r0, %r2};
}
""".replace("{ .reg .b32 %r1;", "{ .reg .b32 %r1; .reg .pred %q;").replace(".reg .b32 %r<3>;",
                                                                        ".reg .b32 %r<3>; .reg .pred %p; .reg .b64 %rd;"))
    entry = module.entries["k"]
    assert [p.offset for p in entry.params] == [0, 128] and entry.directives["maxntid"] == (128, 1, 1)
    assert module.variables["table"].data == b"\1\0\0\0\x10\0\0\0"
    first, branch, load, store = entry.instructions
    assert first.operands[0] != load.operands[0] and first.operands[1] == text.Imm(-5) and first.loc == ("kernel.py", 12)
    assert branch.negated and entry.labels == {"L": 1} and load.line == 14
    assert load.operands[1] == text.Mem(text.Sym("n"), 4) and store.operands[0] == text.Mem(text.Reg(4), -8)
    assert store.operands[1] == text.Vec((text.Reg(0), text.Reg(2)))
