"""Runs: one life of a flow, from its submission to its end. Pure."""
