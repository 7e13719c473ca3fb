"""Tensor functions for the server: native C++ for CPUs, plain torch as the specification."""
