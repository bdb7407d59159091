"""Statistics of ended runs: sketches, stored records, series."""
