import numpy as np
import pytest

import tilejit
import tilejit.language as tl
from tilejit.errors import CompilationError


@tilejit.kernel
def sums(x, out, n, BLOCK: tl.constexpr, EVERY: tl.constexpr, DEPTH: tl.constexpr = 1):
    cols = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for _ in range(DEPTH):
        for i in tl.range(tl.program_id(0), n, tl.num_programs(0), in_step=EVERY):
            total += tl.load(x + i * BLOCK + cols)
    tl.store(out + tl.program_id(0) * BLOCK + cols, total)


@pytest.mark.parametrize("n", [1, 3, 8, 20, 48])
@pytest.mark.parametrize("ctas", [1, 2])
def test_programs_wait(n, ctas):
    x = np.random.default_rng(0).standard_normal((n, 512)).astype(np.float32)
    with tilejit.knobs(target="emulator"):
        for _ in range(2):
            out = np.zeros((3, 512), np.float32)
            made = sums[(3,)](x, out, n, BLOCK=512, EVERY=2, num_warps=2, num_ctas=ctas)
            np.testing.assert_allclose(out, [x[i::3].sum(0) for i in range(3)], rtol=1e-5, atol=1e-5)
    assert "in_step" in str(made.ir) and "programs that are ahead wait, each 2 steps" in made.report()


def test_where_they_do_not():
    p = ("*fp32", "*fp32", "int32")
    assert "all_steps" not in sums.compile(*p, BLOCK=512, EVERY=0).ptx
    made = sums.compile(*p, BLOCK=512, EVERY=4, DEPTH=2)
    assert "all_steps" not in made.ptx and "do not wait for one another, it is in another loop" in made.report()
    with pytest.raises(CompilationError, match="in_step must be a constant power of two, found 3"):
        sums.compile(*p, BLOCK=512, EVERY=3)
