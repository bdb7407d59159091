"""Why a run waits or failed. Beside the runs, because it needs workers and queues as well."""
