"""Executors of a step. `interface.py` is the seam; the rest implements it."""
