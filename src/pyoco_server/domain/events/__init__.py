"""Workflow events: what arrives from outside, and what it may start."""
