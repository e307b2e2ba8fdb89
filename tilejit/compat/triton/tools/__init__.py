from pathlib import Path

from tilejit.runtime.ptxas import disassembled


def get_sass(cubin_asm: bytes, fun: str | None = None) -> str:  # a cubin has one
    return disassembled(cubin_asm)


def extract(file_path: str, fun: str | None = None) -> str:
    return disassembled(Path(file_path).read_bytes())
