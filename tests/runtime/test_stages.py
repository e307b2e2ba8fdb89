"""Dumps and overrides: every stage can be seen, and replaced by a file."""
import re

import numpy as np
import pytest

import tilejit
import tilejit.language as tl
from tilejit.errors import AssemblyError, CompilationError, TileJitError
from tilejit.runtime import ptxas


@tilejit.kernel
def twice(x, out, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + offs, tl.load(x + offs, offs < n) * 2.0, offs < n)


ARGS = ("*fp32", "*fp32", "int32")


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("TILEJIT_CACHE_DIR", str(tmp_path / "cache"))


def compiled(**knobs):
    with tilejit.knobs(**knobs):
        return twice.compile(*ARGS, BLOCK=128)


@pytest.fixture
def dump(tmp_path):
    compiled(dump=str(tmp_path / "dump"))
    return tmp_path / "dump" / "twice"


def test_dump_names_stages_in_order(dump):
    names = sorted(p.name for p in dump.iterdir())
    assert names[0] == "00-frontend.tile" and names[-2].endswith("scheduled.tile")
    assert names[-1].endswith("kernel.ptx") and len(names) == len({n[:2] for n in names}) > 4


def test_dump_to_stderr(capsys):
    compiled(dump="all")
    text = capsys.readouterr().err
    assert "// ---- twice: frontend.tile" in text and ".visible .entry twice" in text


def test_override_by_the_dump_itself_changes_nothing(dump):
    plain = compiled()
    again = compiled(override=str(dump.parent))
    assert again.ptx == plain.ptx and not again.from_cache


@pytest.mark.parametrize("stage", ["frontend", "layouts", "scheduled"])
def test_override_of_tile_ir(dump, tmp_path, stage):
    (path,) = dump.glob(f"*-{stage}.tile")
    text = path.read_text()
    assert "2.0" in text
    (tmp_path / "over" / "twice").mkdir(parents=True)
    (tmp_path / "over" / "twice" / f"{stage}.tile").write_text(text.replace("2.0", "3.0"))
    k = compiled(override=str(tmp_path / "over"))
    assert "0f40400000" in k.ptx and "0f40000000" not in k.ptx          # 3.0, not 2.0
    assert "0f40000000" in compiled().ptx                               # and it was not cached


def test_override_runs(dump, tmp_path):
    (path,) = dump.glob("*-frontend.tile")
    (tmp_path / "over" / "twice").mkdir(parents=True)
    (tmp_path / "over" / "twice" / path.name).write_text(path.read_text().replace("2.0", "3.0"))
    x, out = np.ones(16, np.float32), np.zeros(16, np.float32)
    with tilejit.knobs(target="emulator", override=str(tmp_path / "over")):
        twice[(1,)](x, out, 16, BLOCK=128)
    assert (out == 3).all()


@pytest.mark.skipif(ptxas.find_ptxas() is None, reason="no ptxas here")
def test_override_of_ptx(dump, tmp_path):
    (path,) = dump.glob("*-kernel.ptx")
    (tmp_path / "over" / "twice").mkdir(parents=True)
    target = tmp_path / "over" / "twice" / "kernel.ptx"
    target.write_text(path.read_text() + "// by hand\n")
    assert compiled(override=str(tmp_path / "over")).ptx.endswith("// by hand\n")
    target.write_text(path.read_text().replace("ret;", "retreat;"))
    with pytest.raises(AssemblyError, match="retreat"):
        compiled(override=str(tmp_path / "over"))


def test_override_that_does_not_parse(dump, tmp_path):
    (tmp_path / "over" / "twice").mkdir(parents=True)
    (tmp_path / "over" / "twice" / "frontend.tile").write_text("nonsense")
    with pytest.raises(TileJitError):
        compiled(override=str(tmp_path / "over"))


def test_compiled_kernel_has_every_stage():
    first = compiled()
    second = compiled()
    assert not first.from_cache and second.from_cache
    for k in (first, second):
        assert "def twice" in k.source and "kernel @twice" in k.ir and "kernel @twice" in k.scheduled
        assert k.metadata.name == "twice" and k.report().startswith("twice: 128 threads")
    assert (first.ptx, first.cubin, first.metadata, first.resources, first.ir) == (
        second.ptx, second.cubin, second.metadata, second.resources, second.ir)
    if first.cubin is not None and ptxas.find_tool("nvdisasm"):
        assert "LDG" in first.sass() and first.resources.clean


def test_always_compile():
    compiled()
    assert not compiled(always_compile=True).from_cache


def test_other_options_are_other_entries():
    a, b = twice.compile(*ARGS, BLOCK=128), twice.compile(*ARGS, BLOCK=128, num_warps=8)
    assert b.metadata.num_threads == 256 and a.metadata.num_threads == 128
    assert not b.from_cache and twice.compile(*ARGS, BLOCK=128, num_warps=8).from_cache


def test_perf_warnings(capsys):
    @tilejit.kernel
    def copy(d, out):
        o = tl.arange(0, 16)[:, None] * 16 + tl.arange(0, 16)[None, :]
        tl.store(out + o, d.load([0, 0]))

    d = tilejit.TensorDescriptor(np.zeros(4096, np.float16), (16, 30), (30, 1), (16, 16))
    for expect_cached in (False, True):
        with tilejit.knobs(warn="perf"):
            assert copy.compile(d, "*fp16").from_cache is expect_cached
        assert "copy: descriptor d goes through pointers" in capsys.readouterr().err
    copy.compile(d, "*fp16")
    assert capsys.readouterr().err == ""


def test_dependent_launch():
    """Nothing of global memory is touched before the kernel ahead has ended."""
    ptx, alone = (twice.compile(*ARGS, BLOCK=1024, launch_pdl=on).ptx for on in (True, False))
    assert "griddepcontrol" not in alone
    first = re.search(r"\b(ld|st|red|atom)\.global", ptx)
    assert first and 0 < ptx.index("griddepcontrol.launch_dependents") < ptx.index("griddepcontrol.wait") < first.start()
    assert "griddepcontrol" not in twice.compile(*ARGS, BLOCK=64).ptx     # it has little to do


@pytest.mark.remarks("spills", "stack", reason="32 registers hold less than a thread's 32 elements and their addresses")
def test_maxnreg():
    """The limit is in the entry's directives, and ptxas keeps to it."""
    free, tight = (twice.compile(*ARGS, BLOCK=1024, num_warps=1, maxnreg=n) for n in (None, 32))
    assert ".maxnreg" not in free.ptx and ".maxnreg 32\n" in tight.ptx
    if tight.resources is not None:
        assert tight.resources.registers <= 32 < free.resources.registers


@pytest.mark.parametrize("n", [16, "64"])
def test_maxnreg_out_of_range(n):
    with pytest.raises(CompilationError, match="24 or more"):
        twice.compile(*ARGS, BLOCK=128, maxnreg=n)


def test_maxnreg_beyond_what_a_thread_has_limits_nothing():
    k = twice.compile(*ARGS, BLOCK=128, maxnreg=256)
    assert ".maxnreg" not in k.ptx and any("maxnreg=256 limits nothing" in line for line in k.report_lines)


@tilejit.kernel
def product(a, b, c):
    c.store([0, 0], tl.dot(a.load([0, 0]), b.load([0, 0])).to(tl.bfloat16))


def test_override_is_verified(tmp_path):
    """A wait for a product that the author of a stage deletes: the sums are pending still, at the user's line."""
    tile = ("desc<bf16[64x64]>",) * 3
    with tilejit.knobs(dump=str(tmp_path / "dump")):
        product.compile(*tile)
    (path,) = (tmp_path / "dump" / "product").glob("*-scheduled.tile")
    lines = path.read_text().split("\n")
    at = next(i for i, line in enumerate(lines) if "= dot_wait " in line)
    found = re.match(r" *(%[\w.]+) = dot_wait (%[\w.]+) ", lines[at])
    (tmp_path / "over" / "product").mkdir(parents=True)
    over = tmp_path / "over" / "product" / "scheduled.tile"
    without = "\n".join(lines[:at] + [re.sub(re.escape(found[1]) + r"(?![\w.])", found[2], x) for x in lines[at + 1:]])
    for text, message in ((without, "is pending: only dot_wait turns it into a tile"),
                          ("\n".join(lines[:at] + lines[at + 1:]), "is not defined here")):
        over.write_text(text)
        with tilejit.knobs(override=str(tmp_path / "over")), pytest.raises(CompilationError, match=message) as e:
            product.compile(*tile)
        assert "defined" in message or e.value.loc.short().startswith("test_stages.py:")
