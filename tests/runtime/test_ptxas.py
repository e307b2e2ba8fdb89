"""ptxas: its log is read by code, its line numbers become the user's lines, and it is found where it should be."""
import pytest

import tilejit
from tilejit.errors import AssemblyError
from tilejit.runtime import ptxas

needs_ptxas = pytest.mark.skipif(ptxas.find_ptxas() is None, reason="no ptxas here")

#: One wgmma whose accumulator is touched before its wait.
TOUCH = """\
.version 8.0
.target sm_90a
.address_size 64
.file 1 "/k/user.py"
.visible .entry touch(.param .u64 out)
.maxntid 128, 1, 1
{
    .reg .f32 %a<4>;
    .reg .b64 %d, %o;
    .reg .b32 %s;
    .shared .align 1024 .b8 smem[4096];
    mov.u32 %s, smem;
    cvt.u64.u32 %d, %s;
    mov.f32 %a0, 0f00000000;
    mov.f32 %a1, 0f00000000;
    mov.f32 %a2, 0f00000000;
    mov.f32 %a3, 0f00000000;
    .loc 1 12 0
    wgmma.fence.sync.aligned;
    wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%a0, %a1, %a2, %a3}, %d, %d, 1, 1, 1, 0, 0;
    wgmma.commit_group.sync.aligned;
    .loc 1 14 0
    add.f32 %a0, %a0, 0f3F800000;
    wgmma.wait_group.sync.aligned 0;
    ld.param.u64 %o, [out];
    st.global.f32 [%o], %a0;
    ret;
}
"""
SPILL = "\n".join(
    [".version 8.0", ".target sm_90a", ".address_size 64", ".visible .entry spill(.param .u64 p)", ".maxnreg 24", "{",
     "    .reg .f32 %f<40>;", "    .reg .b64 %o;", "    ld.param.u64 %o, [p];"]
    + [f"    ld.volatile.global.f32 %f{i}, [%o+{4 * i}];" for i in range(40)]
    + [f"    st.volatile.global.f32 [%o+{4 * i}], %f{i};" for i in reversed(range(40))] + ["    ret;", "}"])


@needs_ptxas
def test_clean_assembly():
    cubin, r = ptxas.assemble(TOUCH.replace("    add.f32 %a0, %a0, 0f3F800000;\n", ""))
    assert cubin[:4] == b"\x7fELF"
    assert r.clean and r.registers > 0 and r.static_shared == 4096


@needs_ptxas
def test_wgmma_message_has_the_users_line():
    _, r = ptxas.assemble(TOUCH)
    (m,) = r.messages
    assert (m.code, m.ptx_line, m.loc.file, m.loc.line) == ("C7517", 23, "/k/user.py", 14)
    assert not r.clean and "user.py:14" in str(m) and "accumulator" in str(m)


@needs_ptxas
def test_spills_are_counted():
    _, r = ptxas.assemble(SPILL)
    assert r.spill_stores > 0 and r.spill_loads > 0 and r.stack > 0 and r.registers <= 24 and not r.clean


@needs_ptxas
def test_error_has_the_users_line():
    with pytest.raises(AssemblyError) as caught:
        ptxas.assemble(TOUCH.replace("add.f32", "bogus.f32"))
    assert (caught.value.loc.file, caught.value.loc.line) == ("/k/user.py", 14)
    assert "bogus" in caught.value.message and "PTX line 23" in caught.value.notes[0]


LOG_13_5 = """\
ptxas info    : (C7517) Potential Performance Loss: wgmma.wait_group is injected in around line 23 in function 'touch'
ptxas info    : (C7511) Potential Performance Loss: wgmma.mma_async instructions are serialized
ptxas         .     64 bytes stack frame, 32 bytes spill stores, 16 bytes spill loads
ptxas info    : Used 154 registers, used 3 barriers, 64 bytes cumulative stack size, 1024 bytes smem
"""


def test_messages_are_matched_by_code():
    """Wording and prefixes of another release."""
    r = ptxas.parse_log(LOG_13_5, TOUCH.splitlines())
    assert [m.code for m in r.messages] == ["C7517", "C7511"]
    assert r.messages[0].loc.line == 14 and r.messages[1].loc is None
    assert (r.registers, r.spill_stores, r.spill_loads, r.stack) == (154, 32, 16, 64)
    assert (r.barriers, r.static_shared) == (3, 1024)


@pytest.mark.parametrize("log,text,line", [
    ("ptxas k.ptx, line 23; error   : Arguments mismatch for instruction 'add'\nptxas fatal : aborted", "mismatch", 14),
    ("ptxas fatal   : (C7602) Insufficient registers (128) to compile instruction at line 20 in 'touch'", "C7602", 12),
    ("ptxas fatal   : Unsupported .version 9.9; current version is '9.0'", "9.9", None)])
def test_error_texts(log, text, line):
    error = ptxas.error_of(log, TOUCH.splitlines())
    assert text in str(error)
    assert (error.loc.line if error.loc else None) == line


def test_line_before_any_loc_has_no_source():
    assert ptxas.source_line(TOUCH.splitlines(), 12) is None


def test_knob_names_the_assembler(tmp_path):
    with tilejit.knobs(ptxas="driver"):
        assert ptxas.find_ptxas() is None and ptxas.version() == "driver"
    with tilejit.knobs(ptxas=str(tmp_path / "nothing")), pytest.raises(AssemblyError, match="cannot be run"):
        ptxas.find_ptxas()
    fake = tmp_path / "ptxas"
    fake.write_text("#!/bin/sh\necho Cuda compilation tools, release 12.9, V12.9.86\n")
    fake.chmod(0o755)
    with tilejit.knobs(ptxas=str(fake)):
        assert ptxas.find_ptxas() == str(fake) and ptxas.version() == "ptxas V12.9.86"
