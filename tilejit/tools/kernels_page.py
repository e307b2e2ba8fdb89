"""The page docs/kernels.md: every row kernel, how it is called and what it computes."""
from __future__ import annotations

import inspect
import re
from typing import Any

from tilejit import kernels

#: Where they are.
HOME = "tilejit.kernels.rows."


def kernels_page() -> str:
    """The page as Markdown."""
    lines = ["# Row kernels", "",
             "Written by `python -m tilejit kernels` from the functions' declarations; a test fails when this page is",
             "out of date. All take torch tensors, numpy arrays (without a GPU), and what `tilejit.to_device` makes;",
             "results may be given by name. Under torch those marked *operator* are custom operators too, of which",
             "those marked *gradient* have one."]
    for name in kernels.__all__:
        f = getattr(kernels, name)
        if not f.__module__.startswith(HOME):
            continue
        marks = [word for word, there in (("operator", hasattr(f, "overload_of")),
                                          ("gradient", getattr(f, "backward", None))) if there]
        lines += ["", f"## {name}", "", f"    {name}{_signature(f)}", "", *inspect.cleandoc(f.__doc__).splitlines()]
        lines += ["", f"*{', '.join(marks)}*"] if marks else []
    return "\n".join(lines)


def _signature(f: Any) -> str:
    """Names and defaults, without annotations."""
    text = str(inspect.signature(getattr(f, "fn", f)))
    return re.sub(r": (?:'[^']*'|[\w.\[\]| ]+)", "", re.sub(r" -> .*", "", text)).replace(" = ", "=")
