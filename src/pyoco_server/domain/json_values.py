"""What all of JSON's readers agree on."""

MAX_INT = 2**63 - 1
"""Larger integers are valid JSON, but few readers keep them exact."""
