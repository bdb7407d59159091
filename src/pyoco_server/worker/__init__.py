"""The worker: takes jobs, runs their flows, writes what becomes of them."""

from pyoco_server.worker.nats_worker import PyocoNatsWorker

__all__ = ["PyocoNatsWorker"]
