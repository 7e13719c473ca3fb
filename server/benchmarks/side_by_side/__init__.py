"""Our engine beside those that a user would pick instead: same prompts, same machine, same minutes.

Each engine is a process in its own environment (`engines/`), spoken to in JSON lines
(`protocol.py`). Rounds interleave them, medians and ratios come out.
"""
