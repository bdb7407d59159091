"""Schedules: when they are due, and what a due tick does."""
