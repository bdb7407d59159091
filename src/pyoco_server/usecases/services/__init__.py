"""What runs beside the requests of a gateway: feeds, the orchestrator, the sweep."""
