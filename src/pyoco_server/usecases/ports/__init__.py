"""What the use cases need from outside. `jetstream` and `testing` both provide it; one suite checks both."""
