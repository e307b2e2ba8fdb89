"""The disk cache: what is written is read back whole or not at all, whoever else writes; its folder is private."""
import multiprocessing
import os
import time
from pathlib import Path

import pytest

import tilejit
from tilejit.errors import Loc
from tilejit.ptx.metadata import KernelMetadata, PointerParam, ScalarParam, TensorMapParam
from tilejit.runtime import cache
from tilejit.runtime.ptxas import Message, Resources

META = KernelMetadata("k", (PointerParam("x"), ScalarParam(("cdiv", ("arg", "n"), ("const", 16)), "int32"),
                            TensorMapParam("d", (("shape", "d", 0),), (("const", 1),), (64,), "bf16", 128, "nan")),
                      128, 1024, 4, 3)
RESOURCES = Resources(40, 1, 2, 3, (Message("C7510", "text", 7, Loc("a.py", 3, call_site=Loc("b.py", 4))),), 2, 8)
ENTRY = cache.Cached("// PTX \u00e9\n", b"\x7fELF\n\n\0cubin", META, RESOURCES, ("ring a", "ring b"))
KEY = {"kernel": "k", "args": {"x": {"type": "ptr<fp32>", "divisible": 16}}, "options": {"num_warps": ["int", "4"]}}


@pytest.fixture(autouse=True)
def own_folder(tmp_path):
    with tilejit.knobs(cache_dir=str(tmp_path / "c")):
        yield


def files():
    return list(cache.folder().glob("*.kernel"))


def test_round_trip():
    assert cache.read(KEY) is None
    cache.write(KEY, ENTRY)
    assert cache.read(KEY) == ENTRY
    other = cache.Cached("ptx", None, META, None)
    cache.write({**KEY, "kernel": "j"}, other)
    assert cache.read({**KEY, "kernel": "j"}) == other and cache.read(KEY) == ENTRY


def test_tuples_and_lists_are_one_key():
    cache.write({**KEY, "options": {"num_warps": ("int", "4")}}, ENTRY)
    assert cache.read(KEY) == ENTRY


@pytest.mark.parametrize("where", [0, 5, 0.3, 0.6, -1])
def test_a_flipped_byte_is_a_miss(where):
    cache.write(KEY, ENTRY)
    (path,) = files()
    data = bytearray(path.read_bytes())
    at = int(where * len(data)) if isinstance(where, float) else where
    data[at] ^= 1
    path.write_bytes(bytes(data))
    assert cache.read(KEY) is None and not path.exists()


@pytest.mark.parametrize("size", [0, 1, 100, -1])
def test_a_cut_file_is_a_miss(size):
    cache.write(KEY, ENTRY)
    (path,) = files()
    path.write_bytes(path.read_bytes()[:size])
    assert cache.read(KEY) is None and not path.exists()


def test_an_entry_under_a_wrong_name_is_a_miss():
    """A colliding or renamed file: the full key decides."""
    cache.write(KEY, ENTRY)
    (path,) = files()
    other = {**KEY, "kernel": "j"}
    path.rename(cache._file(cache.folder(), cache.key_text(other)))
    assert cache.read(other) is None


def test_links_are_not_followed(tmp_path):
    cache.write(KEY, ENTRY)
    (path,) = files()
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert cache.read(KEY) is None


def test_folder_is_private():
    assert cache.folder().stat().st_mode & 0o777 == 0o700


def test_folder_that_others_write_is_refused(tmp_path, capsys):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with tilejit.knobs(cache_dir=str(tmp_path / "open")):
        cache.write(KEY, ENTRY)
        assert cache.folder() is None and cache.read(KEY) is None
    assert "writable by others" in capsys.readouterr().err
    with tilejit.knobs(cache_dir=str(tmp_path / "open"), cache_trust=True):
        assert cache.folder() is not None


def test_folder_of_another_user_is_refused(tmp_path, monkeypatch):
    (tmp_path / "foreign").mkdir(mode=0o700)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with tilejit.knobs(cache_dir=str(tmp_path / "foreign")):
        assert cache.folder() is None


def test_folder_that_cannot_be_made(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    with tilejit.knobs(cache_dir=str(tmp_path / "file" / "c")):
        cache.write(KEY, ENTRY)
        assert cache.read(KEY) is None
    assert "unusable" in capsys.readouterr().err


def test_disk_that_cannot_be_written(monkeypatch, capsys):
    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    cache.write(KEY, ENTRY)
    assert "could not write" in capsys.readouterr().err
    assert list(cache.folder().iterdir()) == []


def test_off():
    with tilejit.knobs(cache=False):
        cache.write(KEY, ENTRY)
        assert cache.read(KEY) is None and cache.entries() == [] and cache.clear() == 0


def test_least_recently_used_goes_first():
    cache.write(KEY, ENTRY)
    size = files()[0].stat().st_size
    cache.clear()
    keys = [{**KEY, "n": i} for i in range(4)]
    now = time.time()
    with tilejit.knobs(cache_dir=str(cache.folder()), cache_size=7 * size // 2):
        for i, key in enumerate(keys[:3]):
            cache.write(key, ENTRY)
            os.utime(cache._file(cache.folder(), cache.key_text(key)), (now - 100 + i, now - 100 + i))
        assert cache.read(keys[0]) == ENTRY        # now the most recently used
        cache.write(keys[3], ENTRY)
        assert [cache.read(k) is not None for k in keys] == [True, False, True, True]


def test_what_dead_writers_left_is_swept(monkeypatch):
    monkeypatch.setattr(cache, "_TRUSTED", -1.0)
    cache.write(KEY, ENTRY)
    old, new = cache.folder() / "a.tmp", cache.folder() / "b.tmp"
    for p in (old, new):
        p.write_text("")
    os.utime(old, (0, 0))
    cache.write({**KEY, "n": 1}, ENTRY)
    assert not old.exists() and new.exists()


def test_a_folder_with_room_is_not_looked_through_at_each_entry(monkeypatch):
    """Thousands of entries take a second: as long as what is known leaves room, nobody looks."""
    looks = []
    evict = cache._evict
    monkeypatch.setattr(cache, "_evict", lambda base: looks.append(base) or evict(base))
    for i in range(5):
        cache.write({**KEY, "n": i}, ENTRY)
    assert len(looks) == 1 and cache.note("size", "")       # which the next process reads
    with tilejit.knobs(cache_dir=str(cache.folder()), cache_size=1):
        cache.write({**KEY, "n": 9}, ENTRY)
        assert len(looks) == 2 and not files()


def test_a_full_folder_is_not_looked_through_at_each_entry(monkeypatch):
    large = cache.Cached("ptx", os.urandom(60_000), META, None)
    looks, evict = [], cache._evict
    monkeypatch.setattr(cache, "_evict", lambda base: looks.append(base) or evict(base))
    with tilejit.knobs(cache_dir=str(cache.folder()), cache_size=2_000_000):
        for i in range(90):
            cache.write({**KEY, "n": i}, large)
            assert sum(p.stat().st_size for p in files()) <= 2_000_000
    assert len(looks) <= 30


def test_list_and_clear():
    for i in range(3):
        cache.write({**KEY, "n": i}, ENTRY)
    assert sorted(e.key["n"] for e in cache.entries()) == [0, 1, 2]
    assert cache.clear() == 3 and cache.entries() == []


def test_difference_names_the_leaf():
    other = {**KEY, "args": {"x": {"type": "ptr<bf16>", "divisible": 16}}}
    assert cache.difference(KEY, other) == ["args.x.type: 'ptr<fp32>' -> 'ptr<bf16>'"]


def _hammer(folder: str, seed: int, failures) -> None:
    with tilejit.knobs(cache_dir=folder, cache_size=20_000):
        for i in range(60):
            key = {**KEY, "n": (i * (seed + 3)) % 7}
            entry = cache.Cached(f"ptx {key['n']}" * 50, None, META, None)
            found = cache.read(key)
            if found is not None and found != entry:
                failures.put(f"{key['n']}: {found.ptx[:20]}")
            cache.write(key, entry)
            if i % 20 == 19:
                cache.clear()


def test_many_processes():
    """Eight writers, readers, evictions and clears at once: never a wrong entry, never an exception."""
    context = multiprocessing.get_context("fork")
    failures = context.Queue()
    folder = str(cache.folder())
    workers = [context.Process(target=_hammer, args=(folder, i, failures)) for i in range(8)]
    for w in workers:
        w.start()
    for w in workers:
        w.join(60)
    assert [w.exitcode for w in workers] == [0] * 8
    assert failures.empty()
    assert not list(Path(folder).glob("*.tmp"))


def test_notes_hold_for_their_stamp():
    cache.take_note("compiler", "one", "text\nof lines")
    assert cache.note("compiler", "one") == "text\nof lines"
    assert cache.note("compiler", "two") is None and cache.note("other", "one") is None


def test_the_compiler_is_hashed_again_when_a_source_changes(monkeypatch, tmp_path):
    """Sizes and times first; the files themselves where those are others."""
    from tilejit.runtime import compile as line

    for name in ("a.py", "tools/b.py", "ir/c.py"):
        (tmp_path / "tilejit" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tilejit" / name).write_text("1")
    (tmp_path / "tilejit" / "runtime").mkdir()
    monkeypatch.setattr(line, "__file__", str(tmp_path / "tilejit" / "runtime" / "compile.py"))
    fresh = line.compiler_hash.__wrapped__
    first, reads = fresh(), []
    monkeypatch.setattr(line, "open", lambda path, mode: reads.append(Path(path).name) or open(path, mode), raising=False)
    assert fresh() == first and reads == []
    (tmp_path / "tilejit" / "tools" / "b.py").write_text("tools are no part of it")
    assert fresh() == first and reads == []
    (tmp_path / "tilejit" / "ir" / "c.py").write_text("22")
    assert fresh() != first and sorted(reads) == ["a.py", "c.py"]


TOGETHER = """
import sys, tilejit, tilejit.language as tl
from tilejit.kernels.add import add_kernel
from tilejit.runtime import compile as line
made = line._compiled
line._compiled = lambda *a: print("compiled") or made(*a)
for block in (64, 128):
    add_kernel.compile("*fp32", "*fp32", "*fp32", "int32", BLOCK=block)
"""


def test_processes_that_start_together_compile_once(tmp_path):
    """And nobody waits for a process that died in its turn."""
    import os
    import subprocess
    import sys

    env = {**os.environ, "TILEJIT_CACHE_DIR": str(tmp_path / "shared"), "TILEJIT_PTXAS": "driver"}
    dead = ("from tilejit.runtime import cache, compile as line\n"
            "import os\nline._compiled = lambda *a: os._exit(9)\n")
    assert subprocess.run([sys.executable, "-c", dead + TOGETHER.replace("made = line._compiled", "").replace(
        'line._compiled = lambda *a: print("compiled") or made(*a)', "")], env=env).returncode == 9
    workers = [subprocess.Popen([sys.executable, "-c", TOGETHER], env=env, stdout=subprocess.PIPE, text=True)
               for _ in range(4)]
    assert sum(w.communicate(timeout=120)[0].count("compiled") for w in workers) == 2


def test_a_disk_that_cannot_be_written_is_said_once(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(os, "replace", full)
    cache._complain.cache_clear()
    for n in range(3):
        cache.write({"kernel": n}, ENTRY)
    assert capsys.readouterr().err.count("could not write") == 1


def full(*args, **kwargs):
    raise OSError(28, "No space left on device")
