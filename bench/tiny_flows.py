"""The flows of the benchmarks: as little work as possible, so that what is measured is ours."""

import time

from pyoco import Flow, task


@task
def one() -> int:
    return 1


@task
def two(one: int) -> int:
    return one + 1


@task
def three(two: int) -> int:
    return two + 1


@task
def sleep() -> None:
    time.sleep(1)


FLOWS = {"tiny": Flow(name="tiny") >> one >> two >> three, "nap": Flow(name="nap") >> sleep}


def resolve(flow_name: str) -> Flow:
    return FLOWS[flow_name]
