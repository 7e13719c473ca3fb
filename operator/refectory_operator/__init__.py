"""Refectory's Kubernetes operator. Imports neither the server nor the kernels, nor torch."""

__version__ = "0.1.0"
