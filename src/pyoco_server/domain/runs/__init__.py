"""Runs: one execution of a flow, from submission to end. Pure."""
