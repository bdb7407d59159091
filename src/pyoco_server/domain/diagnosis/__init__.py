"""Why a run waits or failed. Beside the runs, because it looks at workers and queues as well."""
