"""The version, importable without the Python API that the package itself offers."""

from importlib import metadata

__version__ = metadata.version("refectory")
