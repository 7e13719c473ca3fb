"""The engine: the step loop, its process, and the clients that talk to it."""
