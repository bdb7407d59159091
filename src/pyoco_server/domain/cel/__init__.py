"""Expressions in CEL, the Common Expression Language, bounded in time and memory."""
