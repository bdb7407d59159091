"""Executions: the run of a graph as a log of events. Pure: no I/O, no clock, no randomness.

decide(state, graph, command, now)  the events of a command, or a refusal   (decide.py, commands.py)
evolve(state, event)                the state after an event                (evolve.py)
react(state, graph, runs, now)      the orchestrator's next steps           (orchestration.py)
"""
