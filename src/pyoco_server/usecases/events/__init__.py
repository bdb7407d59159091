"""From an event to a run, exactly once."""
