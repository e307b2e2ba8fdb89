from __future__ import annotations

import multiprocessing
import os
import pickle
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilejit.compat.triton._alias import install


@dataclass
class ProcessResult:
    exc: BaseException | None
    driver_stderr_output: str


def _call(pipe: Any, path: list[str], work: bytes, stderr: str, env: Mapping[str, str]) -> None:
    os.environ.update(env)
    sys.path[:] = path
    install()
    with open(stderr, "wb") as file:
        os.dup2(file.fileno(), 2)
        raised = None
        try:
            function, args, kwargs = pickle.loads(work)
            function(*args, **kwargs)
            _synchronize()
        except Exception as error:
            raised = error
        sys.stderr.flush()
    pipe.send(raised)


def _synchronize() -> None:
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.synchronize()


def run_in_process(client_fn: Callable[..., Any], args: tuple = (), kwargs: Mapping[str, Any] | None = None,
                   env: Mapping[str, str] | None = None) -> ProcessResult:
    """Call a function, which can be pickled."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    limit = os.environ.get("TRITON_TEST_PROCESS_TIMEOUT")
    with tempfile.TemporaryDirectory() as folder:
        stderr = str(Path(folder, "stderr"))
        work = pickle.dumps((client_fn, args, dict(kwargs or {})))
        process = context.Process(target=_call, args=(theirs, sys.path, work, stderr, dict(env or {})))
        process.start()
        theirs.close()
        try:
            if not ours.poll(float(limit) if limit else None):
                raise TimeoutError(f"test subprocess {client_fn.__name__} exceeded its {limit}-second timeout")
            raised = ours.recv()
        except EOFError:
            process.join()
            raise RuntimeError(f"child process exited with code {process.exitcode} without returning a result"
                               ) from None
        finally:
            process.kill()
            process.join()
        return ProcessResult(raised, Path(stderr).read_text() if Path(stderr).exists() else "")


__all__ = ["ProcessResult", "run_in_process"]
