"""`triton` is tilejit's in these tests."""
import sys

import pytest

from tilejit.compat import triton as stand_in


@pytest.fixture(autouse=True)
def triton(monkeypatch):
    """`triton`, installed for one test."""
    for name in [n for n in sys.modules if n == "triton" or n.startswith("triton.")]:
        monkeypatch.delitem(sys.modules, name)
    stand_in.install()
    import triton

    yield triton
    stand_in.uninstall()
