"""Slots that threads read into registers are given back once they are there, not once they were asked for."""
import re

import numpy as np
import pytest

import tilejit
import tilejit.language as tl


@tilejit.kernel
def scaled_product(a_desc, b_desc, scale_desc, out_desc, n, B: tl.constexpr):
    """Products whose rows are scaled block by block, by numbers that come through a ring of their own."""
    acc = tl.zeros([B, B], tl.float32)
    for i in tl.range(0, n, B, num_stages=2):
        scale = scale_desc.load([0, i]).reshape([B])
        part = tl.dot(a_desc.load([0, i]), b_desc.load([i, 0]))
        acc += part * scale[None, :]
    out_desc.store([0, 0], acc)


def made_of(register: str, lines: list[str]) -> set[str]:
    """The lines that a register's value comes from, in a text without jumps."""
    found, todo = set(), [register]
    while todo:
        name = todo.pop()
        for line in lines:
            if re.match(rf"\s*(?:@\S+ )?[\w.:]+ (?:\{{[^}}]*)?{name}\b", line) and line not in found:
                found.add(line)
                todo += re.findall(r"%[a-z]+\d+", line.split(name, 1)[1])
    return found


def test_an_arrival_waits_for_the_registers():
    """It stands behind the product that the numbers scale, and its predicate is made of every load's registers."""
    types = ["desc<fp16[64x64]>", "desc<fp16[64x64]>", "desc<fp32[1x64]>", "desc<fp32[64x64]>"]
    k = scaled_product.compile(*types, "int32", B=64, num_warps=4)
    loop = k.scheduled[k.scheduled.index(" = for "):]
    assert loop.index("local_load") < loop.index("dot_wait") < loop.index("mbar_arrive %scale_empty")
    lines = k.ptx.splitlines()
    at = next(i for i, line in enumerate(lines) if "bar.warp.sync" in line)
    arrival = next(line for line in lines[at:] if "mbarrier.arrive.shared" in line)
    begin = max(i for i in range(at) if lines[i].startswith("$ready"))          # `full` has been awaited
    source = made_of(re.search(r"@(%p\d+)", arrival).group(1), lines[begin:lines.index(arrival)])
    loads = [line for line in lines[begin:at] if "ld.shared" in line]
    assert len(loads) == 8 and source.issuperset(loads)


@pytest.mark.parametrize("n", [64, 320])
def test_the_numbers_are_right(n):
    rng = np.random.default_rng(n)
    a, b = rng.standard_normal((64, n)).astype(np.float16), rng.standard_normal((n, 64)).astype(np.float16)
    scale, out = rng.standard_normal((1, n)).astype(np.float32), np.full((64, 64), np.nan, np.float32)
    d = tilejit.TensorDescriptor
    arrays = [(a, [64, 64]), (b, [64, 64]), (scale, [1, 64]), (out, [64, 64])]
    with tilejit.knobs(target="emulator"):
        scaled_product[(1,)](*(d.from_tensor(*x) for x in arrays), n, B=64, num_warps=4)
    parts = [a[:, i:i + 64].astype(np.float64) @ b[i:i + 64].astype(np.float64) * scale[:, i:i + 64]
             for i in range(0, n, 64)]
    np.testing.assert_allclose(out, sum(parts), rtol=1e-3, atol=1e-3)
