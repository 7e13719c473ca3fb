"""The load generator: requests at any OpenAI endpoint, and what its clients felt."""
