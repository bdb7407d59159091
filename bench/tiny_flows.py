"""The flows of the benchmarks: as little work as possible, so that what is measured is ours."""

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


def resolve(flow_name: str) -> Flow:
    return {"tiny": Flow(name="tiny") >> one >> two >> three}[flow_name]
