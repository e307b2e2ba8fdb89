"""The names of the tile language, and that each of them says so when it is called outside a kernel."""
import pytest

import tilejit.language as tl
from tilejit.errors import CompilationError

BUILTINS = sorted(n for n, x in vars(tl).items() if getattr(x, "is_builtin", False))


@pytest.mark.parametrize("family", ["atomics", "creation", "debug", "descriptors", "elementwise", "hints", "math",
                                    "memory", "products", "reductions", "shape"])
def test_every_public_builtin_of_a_family_is_exported(family):
    module = __import__(f"tilejit.language.{family}", fromlist=["__all__"])
    made = {n for n, x in vars(module).items()
            if getattr(x, "is_builtin", False) and getattr(x, "__module__", "") == module.__name__}
    assert made <= set(module.__all__) and module.__all__ == sorted(module.__all__)
    for name in module.__all__:
        assert getattr(tl, name) is getattr(module, name)


@pytest.mark.parametrize("name", BUILTINS)
def test_outside_a_kernel_a_builtin_says_so(name):
    with pytest.raises(CompilationError, match="inside a @tilejit.kernel"):
        getattr(tl, name)()
