"""Refectory's model server. Importing it is cheap: no torch, no web framework."""

__version__ = "0.1.0"
