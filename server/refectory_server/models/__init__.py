"""Model families as data, and where their weights come from."""
