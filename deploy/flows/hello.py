"""A flow to try an installation with: pyoco-client submit --flow-name hello --param name=you --wait"""

from pyoco import Flow, task


@task
def greet(name: str = "world") -> str:
    print(f"greeting {name}")
    return f"Hello, {name}!"


@task
def count(greet: str) -> int:
    return len(greet)


hello = Flow(name="hello") >> greet >> count
