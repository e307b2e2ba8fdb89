"""Runs the conformance programs on a Hopper GPU and records what they wrote. One command, about a minute:

    PYTHONPATH=. python tests/conformance/record.py [--out FILE] [--only PART-OF-NAME ...] [--jobs 4] [--limit 170]

It needs an H100 or H200, its driver, cuda-python, numpy and ml_dtypes. Programs run in worker processes, so that
one that hangs or destroys its context costs only itself: it is named at the end, and the recording of the others is
written. Each runs twice: outputs that differ are no recording. With --only, the rest of FILE is kept.
"""
from __future__ import annotations

import argparse
import ctypes
import datetime
import json
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

import numpy as np  # noqa: E402
from programs import Buffer, Map, Program, all_programs  # noqa: E402

#: Seconds that one program may take (compiling included), and the first of a process (its context too).
ONE, FIRST = 15, 60
_KINDS = {"fp16": "FLOAT16", "bf16": "BFLOAT16", "fp32": "FLOAT32", "tf32": "TFLOAT32", "fp64": "FLOAT64"}


def encode(m: Map, address: int) -> bytes:
    """The 128 bytes of cuTensorMapEncodeTiled."""
    from tilejit.runtime.driver import api, byte_strides, check

    d = api()
    size = {"uint8": 1, "uint16": 2, "fp16": 2, "bf16": 2, "uint64": 8, "int64": 8, "fp64": 8}.get(m.dtype, 4)
    kind = getattr(d.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{_KINDS.get(m.dtype, m.dtype.upper())}")
    steps = m.steps or (1,) * len(m.shape)
    found = check(d.cuTensorMapEncodeTiled(
        kind, len(m.shape), address + m.offset, [d.cuuint64_t(x) for x in reversed(m.shape)],
        byte_strides([x * size for x in reversed(m.all_strides[:-1])]), [d.cuuint32_t(x) for x in reversed(m.box)],
        [d.cuuint32_t(x) for x in reversed(steps)], d.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        d.CUtensorMapSwizzle({0: 0, 32: 1, 64: 2, 128: 3}[m.swizzle]), d.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_NONE,
        d.CUtensorMapFloatOOBfill(int(m.fill == "nan"))), f"encoding {m}")
    return ctypes.string_at(int(found.getPtr()), 128)


def load(device: Any, p: Program) -> Any:
    """The kernel: assembled by the driver, or by ptxas where the driver is older than the PTX."""
    from tilejit.runtime.driver import DriverError, LoadedKernel

    code, cluster = p.text.encode(), (p.cluster, 1, 1)
    try:
        return LoadedKernel(device, code, "k", p.block, p.shared, cluster)
    except DriverError as error:
        if error.code != 222 or not shutil.which("ptxas"):
            raise
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        subprocess.run(["ptxas", "-arch=sm_90a", "-o", file.name, "-"], input=code, check=True)
        return LoadedKernel(device, Path(file.name).read_bytes(), "k", p.block, p.shared, cluster)


def once(device: Any, kernel: Any, p: Program) -> dict[str, np.ndarray]:
    """One launch on fresh buffers; the bytes of every compared buffer."""
    buffers = {b.name: np.ascontiguousarray(b.data) for b in p.params if isinstance(b, Buffer)}
    memory: dict[str, int] = {}
    try:
        for name, data in buffers.items():
            memory[name] = device.malloc(data.nbytes)
            device.to_device(memory[name], data.ctypes.data, data.nbytes)
        values = [(ctypes.c_char * 128)(*encode(q, memory[q.buffer])) if isinstance(q, Map)
                  else ctypes.c_uint64(memory[q.name]) for q in p.params]
        packed = (ctypes.c_void_p * max(1, len(values)))(*(ctypes.addressof(v) for v in values))
        kernel.launch((p.grid, 1, 1), 0, ctypes.addressof(packed))
        device.synchronize()
        out = {}
        for name in p.outputs:
            out[name] = np.zeros(buffers[name].nbytes, np.uint8)
            device.to_host(out[name].ctypes.data, memory[name], out[name].nbytes)
        return out
    finally:
        for address in memory.values():
            device.free(address)


def worker(folder: Path, names: list[str]) -> int:
    """Runs programs, one line before and after each; stops after an error that destroys the context."""
    from tilejit.runtime.driver import device

    programs = all_programs()
    for name in names:
        print("start", name, flush=True)
        try:
            gpu, p = device(0), programs[name]
            kernel = load(gpu, p)
            first, second = (once(gpu, kernel, p) for _ in range(2))
            if p.faults:
                raise ValueError("no fault")
            if any((first[k] != second[k]).any() for k in first):
                raise ValueError("two runs differ")
            np.savez(folder / f"{list(programs).index(name)}.npz", **{f"{name}:{k}": v for k, v in first.items()})
            print("done", name, flush=True)
        except Exception as error:                       # whatever it is, the others still run
            code = re.search(r"CUDA_ERROR_\w+", str(error))
            if programs[name].faults and code:
                print("fault", name, code.group(), flush=True)
            else:
                print("fail", name, " ".join(str(error).split())[:400], flush=True)
            if getattr(device(0), "lost", ""):
                return 1
    return 0


class Lane:
    """Runs its programs in one worker after another until none is left or the time (monotonic) is over. `command`
    starts a worker; the names follow."""

    def __init__(self, command: list[str], names: list[str], end: float, one: float = ONE, first: float = FIRST):
        self.command, self.left, self.end, self.one, self.first = command, names, end, one, first
        self.failed: dict[str, str] = {}
        self.faults: dict[str, str] = {}
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        while self.left and time.monotonic() < self.end:
            before = len(self.left)
            self._worker()
            if len(self.left) == before:                 # a worker that cannot even start
                break
        for name in self.left:
            self.failed.setdefault(name, "not run")

    def _worker(self) -> None:
        log = tempfile.TemporaryFile("w+")
        process = subprocess.Popen([*self.command, *self.left], stdout=subprocess.PIPE, stderr=log, text=True)
        lines: queue.Queue[str] = queue.Queue()

        def read() -> None:
            assert process.stdout is not None
            for line in process.stdout:
                lines.put(line)
            lines.put("")

        threading.Thread(target=read, daemon=True).start()
        running, patience = "", self.first
        while True:
            try:
                line = lines.get(timeout=max(0.1, min(patience, self.end - time.monotonic())))
            except queue.Empty:
                process.kill()
                self._fail(running, f"no answer in {patience:g} s" if time.monotonic() < self.end else "the time was over")
                break
            word, _, rest = line.strip().partition(" ")
            name, _, message = rest.partition(" ")
            if word == "start":
                running = name
            elif word == "done":
                self.left.remove(name)
                running, patience = "", self.one
            elif word in ("fail", "fault"):
                self._fail(name, message, self.failed if word == "fail" else self.faults)
                running, patience = "", self.one
            elif not line:
                process.wait()
                log.seek(0)
                said = log.read().strip()[-300:]
                self._fail(running, f"the process ended with {process.returncode}: {said}")
                if process.returncode and not running:
                    print(said, file=sys.stderr)
                break

    def _fail(self, name: str, message: str, where: dict[str, str] | None = None) -> None:
        if name:
            self.left.remove(name)
            (self.failed if where is None else where)[name] = message


def gpu_and_driver() -> tuple[str, str, str]:
    """Name of the GPU, version of the driver, CUDA version that it supports; asked in a process of its own."""
    code = ("from tilejit.runtime.driver import device, driver_version\nprint(device(0).name)\nprint(driver_version())")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=FIRST, cwd=HERE.parents[1])
    if done.returncode:
        raise SystemExit(done.stderr)
    name, cuda = done.stdout.split("\n")[:2]
    version = Path("/proc/driver/nvidia/version")
    found = re.search(r"\b(\d{3}\.\d+[.\d]*)", version.read_text()) if version.exists() else None
    return name, found.group(1) if found else "unknown", cuda


def main() -> int:
    """Record; the exit status is 0 if every program has a recording."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=HERE / "recordings.npz")
    parser.add_argument("--only", nargs="*", default=[""], help="parts of the names of the programs to run")
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--limit", type=float, default=170, help="seconds after which nothing new is waited for")
    parser.add_argument("--worker", nargs="+", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        return worker(Path(args.worker[0]), args.worker[1:])
    start = time.monotonic()
    programs = all_programs()
    gpu, driver, cuda = gpu_and_driver()
    chosen = [name for name in programs if any(part in name for part in args.only)]
    arrays: dict[str, np.ndarray] = {}
    digests: dict[str, str] = {}
    faults: dict[str, str] = {}
    if args.out.exists() and args.only != [""]:
        with np.load(args.out) as old:
            about = json.loads(str(old["about"]))
            digests, faults = ({n: d for n, d in about.get(key, {}).items() if n in programs and n not in chosen}
                               for key in ("digests", "faults"))
            arrays = {key: old[key] for key in old.files if key.rpartition(":")[0] in digests}
    print(f"{len(chosen)} programs on {gpu}, driver {driver} (CUDA {cuda})", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(HERE / "record.py"), "--worker", folder]
        lanes = [Lane(command, chosen[i::args.jobs], start + args.limit) for i in range(args.jobs)]
        failed: dict[str, str] = {}
        for lane in lanes:
            lane.thread.join()
            failed |= lane.failed
            faults |= lane.faults
        for path in sorted(Path(folder).glob("*.npz"), key=lambda f: int(f.stem)):
            with np.load(path) as found:
                arrays |= {key: found[key] for key in found.files}
    digests |= {name: programs[name].digest for name in chosen if name not in failed}
    about = {"gpu": gpu, "driver": driver, "cuda": cuda, "date": datetime.date.today().isoformat(), "digests": digests,
             "failed": failed, "faults": faults}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(args.out, about=np.array(json.dumps(about)), **arrays)
    for name in sorted(failed):
        print(f"FAIL {name}: {failed[name]}")
    print(f"{len(chosen) - len(failed)} of {len(chosen)} recorded in {args.out} ({args.out.stat().st_size} bytes), "
          f"{time.monotonic() - start:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
