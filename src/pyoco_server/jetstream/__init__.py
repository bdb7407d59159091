"""NATS JetStream behind our ports. Nothing outside imports nats, and only `wiring` imports this."""
