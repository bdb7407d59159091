"""Indexes of a gateway for lists: caches of the stores."""
