"""The page of the row kernels is what the functions say."""
from pathlib import Path

from tilejit.tools.kernels_page import kernels_page


def test_the_page_is_current():
    path = Path(__file__).parents[2] / "docs" / "kernels.md"
    assert path.read_text() == kernels_page() + "\n", "run `python -m tilejit kernels > docs/kernels.md`"
