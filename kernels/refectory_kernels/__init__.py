"""Tensor functions for the server: plain torch as the specification, native C++ beside it."""
