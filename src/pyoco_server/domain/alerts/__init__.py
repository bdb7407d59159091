"""Alerts, the channels they are sent over, and deliveries: what is defined, what happened, what is sent."""
