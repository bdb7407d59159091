"""Which ways an execution went: the fate of every edge, now and at every earlier moment."""

from pyoco_server.domain.executions.branches import edge_states
from pyoco_server.domain.executions.evolve import fold
from pyoco_server.domain.executions.model import NodeStatus
from support.executions import Life, begun, diamond, graph_of, task

CHOICE = graph_of(
    {"check": task(), "book": task(), "ask": task(), "repair": task()},
    "check > book ? nodes.check.output.ok == true",
    "check > ask ? nodes.check.output.ok == false",
    "check ! repair",
)


def fates(life: Life) -> dict[str, str]:
    return {f"{edge.source} {edge.target}": edge.fate.value for edge in edge_states(life.state, life.graph)}


def test_nothing_is_known_before_a_node_has_ended() -> None:
    assert set(fates(Life(CHOICE)).values()) == {"open"}


def test_a_condition_decides_which_edge_is_taken_and_that_stays_known() -> None:
    life = begun(CHOICE)
    life.succeed("check", result={"ok": True})
    decided = {"check book": "taken", "check ask": "not taken", "check repair": "not taken"}
    assert fates(life) == decided
    life.succeed("book")
    assert (life.status, fates(life)) == ("COMPLETED", decided)


def test_a_failure_takes_its_own_edge() -> None:
    life = begun(CHOICE)
    life.fail("check")
    assert fates(life)["check repair"] == "taken"
    assert fates(life)["check book"] == "not taken"


def test_a_failure_without_an_edge_of_its_own_fails_the_way() -> None:
    life = begun(diamond())
    life.fail("a")
    assert fates(life)["split a"] == "taken"
    assert fates(life)["a gather"] == "failed"


def test_every_earlier_moment_can_be_asked_for() -> None:
    life = begun(CHOICE)
    life.succeed("check", result={"ok": False})
    for count in range(1, len(life.events) + 1):
        state = fold(life.events[:count])
        assert state is not None
        found = [edge.fate.value for edge in edge_states(state, life.graph)]
        check = state.nodes.get("check")
        assert (found[1] == "taken") == (check is not None and check.status is NodeStatus.SUCCEEDED)
