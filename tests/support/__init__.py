"""What several tests need: things of ours to start with, flows, a real NATS to look into."""
