"""One module an engine, run by the Python of that engine's own environment."""
