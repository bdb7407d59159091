"""Alerts: define them, notice what they are about, deliver messages."""
