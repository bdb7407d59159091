"""The use cases, in terms of ports, without broker or framework."""
