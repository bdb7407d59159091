"""Limits: define them, sort runs by them, give places to those that wait."""
