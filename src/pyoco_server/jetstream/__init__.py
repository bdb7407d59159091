"""The ports on NATS JetStream. Only this package imports nats, and only `wiring` imports this package."""
