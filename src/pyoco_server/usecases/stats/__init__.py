"""Statistics of ended runs."""
