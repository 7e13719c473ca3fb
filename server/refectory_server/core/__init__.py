"""The pure core: requests, blocks, the scheduler. No tensors, no clock, no I/O."""
