"""The OpenAI-compatible HTTP side."""
