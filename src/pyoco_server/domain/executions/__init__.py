"""Executions: a graph's life as a log of events. Pure: no I/O, no clock, no randomness.

decide(state, graph, command, now)  what a command leads to: events, or why not   (decide.py, guards.py)
evolve(state, event)                the state after an event, nothing else        (evolve.py)
react(state, graph, runs, now)      what is missing now: the orchestrator's mind  (react.py, reacting/)
"""
