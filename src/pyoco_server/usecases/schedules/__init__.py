"""Schedules: define them, fire their ticks, keep their history."""
