"""The parts of `react`: each reads the draft of an answer and adds to it.

draft.py            the state with all that is said so far, and what is known of time and of the runs
node_ends.py        nodes that end: by their run, their time, or because they were told to stop
joins.py            joins: how many branches have come, and which are not needed any more
node_starts.py      nodes that begin: runs, waits, forks and joins
execution_ends.py   the end of the whole: completed, failed, cancelled
run_orders.py       what the world has to do: runs to dispatch and to cancel
"""
