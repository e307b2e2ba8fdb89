"""Kernels that ptxas would spill are assembled again with room for fewer programs (`runtime/spills.py`)."""
from __future__ import annotations

import re
from dataclasses import replace

import pytest

import tilejit
from tilejit.ptx.metadata import ALL, WISH, KernelMetadata
from tilejit.runtime import ptxas, spills
from tilejit.runtime.ptxas import Resources

PTX = ".visible .entry k()\n.maxntid 128, 1, 1\n{\n    ret;\n}\n"
META = KernelMetadata("k", (), 128, 0, 4, 1, (1, 1, 1), "sm_90a")


def needing(bytes_of):
    """An assembler for which room for so many programs spills so many bytes, told nothing those of None."""
    asked = []

    def assemble(ptx, target, meanwhile=lambda: None):
        found = re.search(r"\.minnctapersm (\d+)\n", ptx)
        asked.append(programs := int(found[1]) if found else None)
        meanwhile()
        return str(programs).encode(), Resources(80 if programs is None else 65536 // 128 // programs, bytes_of[programs])

    return assemble, asked


@pytest.mark.parametrize("spilled, asks, kept", [
    ({None: 0}, [None], None), ({None: 16, 5: 0}, [None, 5], 5), ({None: 16, 5: 8, 1: 0}, [None, 5, 1], 1),
    ({None: 16, 5: 8, 1: 8}, [None, 5, 1], 5), ({None: 16, 5: 16, 1: 24}, [None, 5, 1], None)], ids=str)
def test_the_fewest_spills_are_kept(monkeypatch, spilled, asks, kept):
    """80 registers a thread leave room for 6 programs of 128 threads."""
    assemble, asked = needing(spilled)
    monkeypatch.setattr(ptxas, "assemble", assemble)
    meanwhile = []
    ptx, cubin, resources, record = spills.assembled(PTX, META, lambda: meanwhile.append(1))
    assert asked == asks and len(meanwhile) == 1 and cubin == str(kept).encode()
    assert (ptx == PTX) == (record is None) == (kept is None) and resources.spill_stores == spilled[kept]
    if record is not None:
        assert f".maxntid 128, 1, 1\n.minnctapersm {kept}\n" in ptx and record.numbers["programs"] == kept


def test_a_thread_with_all_its_registers_needs_no_more_room(monkeypatch):
    """Of 168 registers three programs have room, two have more than a thread can use; so has one alone."""
    asked = []
    monkeypatch.setattr(ptxas, "assemble", lambda ptx, *more: asked.append("minnctapersm" in ptx) or (
        b"", Resources(255 if asked[-1] else 168, 8)))
    spills.assembled(PTX, META, lambda: None)
    assert asked == [False, True]


def test_as_many_programs_as_memory_holds_unless_that_spills(monkeypatch):
    """The directive goes where it spills (a kernel of strips was left with 8 bytes of them); else it stays as it is."""
    text = PTX.replace(", 1\n{", f", 1\n.minnctapersm 3{ALL}\n{{")
    assert ALL in text
    for spilled, asks, kept in (({3: 0}, [3], text), ({3: 8, None: 0}, [3, None], PTX)):
        assemble, asked = needing(spilled)
        monkeypatch.setattr(ptxas, "assemble", lambda ptx, *more: assemble(ptx.replace(ALL, ""), *more))
        ptx, _, resources, record = spills.assembled(text, META, lambda: None)
        assert (ptx, asked, record, resources.spill_stores) == (kept, asks, None, 0)


@pytest.mark.parametrize("threads, registers, shared, spilled, kept", [
    (256, 168, 0, 0, 2), (256, 168, 0, 4, None), (256, 200, 0, 0, None), (256, 128, 0, 0, None),
    (256, 168, 120000, 0, None), (128, 104, 0, 0, 5), (128, 104, 0, 8, None), (128, 112, 0, 0, None)])
def test_one_program_more(monkeypatch, threads, registers, shared, spilled, kept):
    """256 threads of more than 128 registers leave no room for others, of 128 of 104 registers four have room."""
    def assemble(ptx, target, meanwhile=lambda: None):
        return (b"more", Resources(64, spilled)) if ".minnctapersm" in ptx else (b"", Resources(registers, 0))

    monkeypatch.setattr(ptxas, "assemble", assemble)
    meta = replace(META, num_threads=threads, shared_bytes=shared)
    ptx, cubin, resources, record = spills.assembled(PTX, meta, lambda: None)
    assert (cubin, record is not None) == (b"more" if kept else b"", kept is not None)
    assert ("minnctapersm" in ptx) == (kept is not None) and (kept is None or f".minnctapersm {kept}\n" in ptx)
    assert resources.registers == (64 if kept else registers)


@pytest.mark.parametrize("says", [".maxnreg 64", ".minnctapersm 2"])
def test_what_a_text_says_stays(monkeypatch, says):
    monkeypatch.setattr(ptxas, "assemble", lambda *_: (b"", Resources(64, 8)))
    given = PTX.replace("{", f"{says}\n{{")
    assert spills.assembled(given, META, lambda: None) == (given, b"", Resources(64, 8), None)


@pytest.mark.parametrize("bytes_of", [{4: 0}, {4: 8, None: 0}, {4: 8, None: 16, 5: 0}])
def test_a_wish_that_spills_is_left_out(monkeypatch, bytes_of):
    assemble, asked = needing(bytes_of)
    given = PTX.replace("{", f".minnctapersm 4{WISH}\n{{")
    monkeypatch.setattr(ptxas, "assemble", lambda ptx, *more: assemble(ptx.replace(WISH, ""), *more))
    ptx, _, resources, _ = spills.assembled(given, META, lambda: None)
    assert asked == list(bytes_of) and not resources.spill_stores and (ptx == given) == (len(bytes_of) == 1)


@tilejit.kernel
def in_turn(x, y, n, DOT: tilejit.language.constexpr):
    tl = tilejit.language
    i = tl.arange(0, 32)
    at, total = i[:, None] * 32 + i[None, :], tl.zeros((32, 32), tl.float32)
    for k in range(n):
        a = tl.exp2(tl.load(x + k * 1024 + at).to(tl.float32)).to(tl.float16)
        total = tl.dot(a, a, total) if DOT else total + a
    tl.store(y + at, total)


@pytest.mark.parametrize("warps, dot, told", [(1, True, True), (4, True, True), (8, True, False), (4, False, False)])
def test_few_warps_that_load_what_they_multiply_have_registers(warps, dot, told):
    made = in_turn.compile("*fp16", "*fp32", "int32", DOT=dot, num_warps=warps, num_stages=1)
    assert (f".minnctapersm {12 // warps}{WISH}" in made.ptx) == told and made.resources.registers <= 168


@tilejit.kernel
def added(x, y, m, n):
    tl = tilejit.language
    c, total = tl.arange(0, 128), tl.zeros((32, 128), tl.float32)
    for r in range(0, m, 32):
        rows = r + tl.arange(0, 32)
        total += tl.load(x + rows[:, None] * n + c[None, :], mask=(rows[:, None] < m) & (c[None, :] < n), other=0)
    tl.store(y + c, tl.sum(total, 0), mask=c < n)


def test_small_loads_of_loops_are_under_way_together():
    """ptxas had four of 32 at a time, in 48 registers: 1.2 TB/s."""
    made = added.compile("*fp32", "*fp32", "int32", "int32")
    assert f".minnctapersm 6{WISH}" in made.ptx and made.resources.registers > 64


@tilejit.kernel
def twice(x):
    tilejit.language.store(x, tilejit.language.load(x) * 2)


def test_it_is_reported_and_shown(monkeypatch):
    """The text that is kept is the kernel's, with a line in its report; the result is the same."""
    real = ptxas.assemble

    def spilling(ptx, *args):
        cubin, found = real(ptx, *args)
        return cubin, found if ".minnctapersm" in ptx else Resources(found.registers, 8, 8, 8)

    monkeypatch.setattr(ptxas, "assemble", spilling)
    made = twice.compile("*fp32")
    assert ".minnctapersm" in made.ptx and not made.resources.spill_stores
    assert "ptxas took" in made.report() and "spilled 8 bytes" in made.report()
