"""The rules of the product: functions of their arguments. No clock, no I/O, no framework."""
