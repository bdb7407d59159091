"""Executions as people and programs use them: create, command, read, watch, and the orchestrator."""
