"""What pyproject.toml cannot say: modules are built without comments, line for line, so that a wheel stays small."""
import io
import tokenize
from pathlib import Path


def without_comments(text: str) -> str:
    """The same program, on the same lines."""
    lines = text.splitlines(keepends=True)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            line, column = token.start
            lines[line - 1] = lines[line - 1][:column].rstrip() + "\n"
    return "".join(lines)


def main() -> None:
    from setuptools import setup
    from setuptools.command.build_py import build_py

    class Build(build_py):
        def build_module(self, module, module_file, package):
            outfile, copied = super().build_module(module, module_file, package)
            path = Path(outfile)
            path.write_text(without_comments(path.read_text(encoding="utf-8")), encoding="utf-8")
            return outfile, copied

    setup(cmdclass={"build_py": Build})


if __name__ == "__main__":
    main()
