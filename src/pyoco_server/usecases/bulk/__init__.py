"""Bulk operations: start, carry out, read."""
