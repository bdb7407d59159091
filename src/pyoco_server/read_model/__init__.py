"""What a gateway remembers of the stores to answer lists quickly: a cache, never the truth."""
