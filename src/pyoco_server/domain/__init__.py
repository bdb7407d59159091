"""The rules of the product as pure functions: no clock, no I/O, no framework."""
