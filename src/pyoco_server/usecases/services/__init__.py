"""Background services of a gateway: feeds, the orchestrator, the sweep."""
