"""Executor processes: one flow at a time each, forked by a zygote and reused."""
