"""Limits: how many runs of a kind may be on the queue or running, and how fast they start."""
