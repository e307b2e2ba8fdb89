"""The kernel of all products, `kernel.py`, and the functions that it takes: walks, loads, steps and ends."""
