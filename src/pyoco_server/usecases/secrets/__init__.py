"""Use cases of secrets and variables."""
