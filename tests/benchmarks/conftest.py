"""The benchmark's files import one another by name."""
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(scope="package", autouse=True)
def folder():
    """Where they are, on the path of imports."""
    sys.path.insert(0, str(FOLDER))
    yield FOLDER
    sys.path.remove(str(FOLDER))
