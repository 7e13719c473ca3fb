"""Token ids from text and chat messages, and text from token ids."""
