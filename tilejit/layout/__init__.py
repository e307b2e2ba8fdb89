"""Layouts: which thread's which register holds which element (see `linear.py`)."""
from tilejit.layout.linear import LinearLayout

__all__ = ["LinearLayout"]
