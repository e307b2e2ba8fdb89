"""Cooperative grids: all programs run at once, or the launch is refused; and what the report says of dependent launch."""
from __future__ import annotations

import numpy as np
import pytest

import tilejit
import tilejit.language as tl
from tilejit.kernels.add import add_kernel
from tilejit.ptx.metadata import KernelMetadata
from tilejit.runtime.occupancy import resident


@tilejit.kernel
def meet(arrived, out, BLOCK: tl.constexpr):
    """Every program waits for all others before it reads what they wrote."""
    here, count = tl.program_id(0), tl.num_programs(0)
    tl.store(out + here, here + 1)
    tl.atomic_add(arrived, 1, sem="release")
    while tl.atomic_add(arrived, 0, sem="acquire") < count:
        pass
    at = tl.arange(0, BLOCK)
    total = tl.sum(tl.load(out + at, at < count, other=0))
    tl.store(out + count + here, total)


@tilejit.kernel
def multiply(a, b, c):
    c.store([0, 0], tl.dot(a.load([0, 0]), b.load([0, 0])).to(tl.bfloat16))


def arrays(programs):
    return np.zeros(1, np.int32), np.zeros(2 * programs, np.int32)


def test_programs_that_wait_for_each_other(monkeypatch):
    monkeypatch.setenv("TILEJIT_TARGET", "emulator")
    arrived, out = arrays(6)
    made = meet[(6,)](arrived, out, BLOCK=8, launch_cooperative_grid=True)
    assert made.metadata.cooperative and (out[6:] == 21).all()


def test_more_programs_than_there_is_room_for(monkeypatch):
    monkeypatch.setenv("TILEJIT_TARGET", "emulator")
    arrived, out = arrays(3000)
    with pytest.raises(tilejit.LaunchError, match=r"meet: launch_cooperative_grid .* 3000 were asked for, there is room "
                                                  r"for \d+ \(128 threads"):
        meet[(3000,)](arrived, out, BLOCK=4096, launch_cooperative_grid=True)
    monkeypatch.setenv("TILEJIT_TARGET", "evaluator")
    with pytest.raises(tilejit.LaunchError, match="the evaluator runs one after another"):
        tilejit.kernel(meet.fn)[(2,)](arrived, out, BLOCK=8, launch_cooperative_grid=True)


def test_room():
    """By threads, registers, shared memory and clusters; 132 multiprocessors."""
    def room(threads, shared, registers, ctas=1):
        return resident(KernelMetadata("k", (), threads, shared, 4, 1, (ctas, 1, 1)), registers) / 132

    assert room(1024, 0, 16) == 2 and room(32, 0, 16) == 32
    assert room(128, 0, 255) == 2 and room(384, 0, 168) == 1 and room(128, 0, 33) == 12
    assert room(128, 230527, 32) == 1 and room(128, 100_000, 32) == 2 and room(128, 100_000, 32, 2) == 1


@pytest.mark.gpu
def test_on_the_gpu():
    torch = pytest.importorskip("torch")
    programs = 2 * tilejit.multiprocessors()
    arrived, out = (torch.zeros(n, dtype=torch.int32, device="cuda") for n in (1, 2 * programs))
    meet[(programs,)](arrived, out, BLOCK=512, launch_cooperative_grid=True)
    assert (out[programs:] == programs * (programs + 1) // 2).all()
    with pytest.raises(tilejit.LaunchError, match="100000 were asked for, there is room for"):
        meet[(100_000,)](arrived, out, BLOCK=512, launch_cooperative_grid=True)


@pytest.mark.parametrize("options, on, why", [
    ({}, "even", "on, there are products"), ({"launch_pdl": True}, True, "on, as launch_pdl says"), ({"launch_pdl": False}, False, "off, as launch_pdl says"),
    ({"target": "sm_80"}, False, "off, sm_80 has none"),
    ({"launch_cooperative_grid": True}, False, "off, a cooperative grid")])
def test_the_report_says_when_a_launch_may_begin(options, on, why):
    made = multiply.compile(*["desc<bf16[64x64]>"] * 3, **options)
    assert f"dependent launch: {why}" in made.report() and made.metadata.pdl == on
    assert ("griddepcontrol.wait" in made.ptx) == bool(on) == made.metadata.launch_pdl


def test_kernels_without_products():
    made = meet.compile("*i32", "*i32", BLOCK=16)
    assert "dependent launch: off, there are no products" in made.report() and not made.metadata.pdl
    made = meet.compile("*i32", "*i32", BLOCK=16, launch_pdl=True)
    assert "dependent launch: on, as launch_pdl says" in made.report() and made.metadata.pdl
    for block, on in ((4096, "few"), (64, False)):
        made = add_kernel.compile("*fp32", "*fp32", "*fp32", "i32", BLOCK=block)
        assert ("@%p0 griddepcontrol.wait" in made.ptx) == bool(on)  # many programs do without
        assert made.metadata.pdl == on and ("dependent launch: on, in launches of few programs" in made.report()) == bool(on)
    made = add_kernel.compile("*fp32", "*fp32", "*fp32", "i32", BLOCK=4096, num_ctas=2)
    assert "dependent launch: on, programs are clusters of 2" in made.report() and made.metadata.pdl
    with pytest.raises(tilejit.CompilationError, match="launch_pdl='maybe' is not legal"):
        meet.compile("*i32", "*i32", BLOCK=16, launch_pdl="maybe")
