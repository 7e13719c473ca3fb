"""Chooses and loads the runner that a configuration asks for; the only importer of torch's road."""
