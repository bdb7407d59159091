"""Use cases of executions: create, command, read and watch."""
