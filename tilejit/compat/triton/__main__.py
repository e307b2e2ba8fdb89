"""`python -m tilejit.compat.triton script.py [args]`, or `-m module [args]`."""
from __future__ import annotations

import os
import runpy
import sys

from tilejit.compat.triton import install

_USAGE = "usage: python -m tilejit.compat.triton (script.py | -m module) [arguments]"


def main(argv: list[str]) -> None:
    module = argv[:1] == ["-m"]
    rest = argv[1:] if module else argv
    if not rest or rest[0] in ("-h", "--help"):
        raise SystemExit(_USAGE)
    install()
    sys.argv = rest
    if module:
        sys.path[0] = os.getcwd()
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = os.path.dirname(os.path.abspath(rest[0]))
        runpy.run_path(rest[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
