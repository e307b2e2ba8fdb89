"""The pages that are written from tables say what the tables say (docs/pages.py)."""
from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tilejit.ptx import isa

DOCS = Path(__file__).resolve().parent.parent / "docs"
sys.path.insert(0, str(DOCS))
import pages  # noqa: E402
from pages import HINT, LIMITS, ORDER, UNIT, VM, spelled, status  # noqa: E402


@pytest.mark.parametrize("name", pages.PAGES)
def test_pages_are_current(name):
    assert (DOCS / name).read_text() == pages.PAGES[name]() + "\n", "run `PYTHONPATH=. python docs/pages.py`"


def test_status_follows_what_carries_a_form_out():
    forms = {f.name: f for f in isa.FORMS}
    assert status(forms["fma"]) == VM and status(forms["wgmma.mma_async.sync.aligned"]) == UNIT
    assert status(forms["fence.proxy"]) == ORDER and status(forms["prefetch.tensormap"]) == HINT
    assert set(LIMITS) <= set(forms)
    assert spelled(isa.Form("add[sat:sat]<type:u16|u32>", "daa")) == ("add[.sat].type", "type: u16 u32")
