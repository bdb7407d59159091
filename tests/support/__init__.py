"""What several tests need: builders, flows, backends, processes, a real NATS."""
