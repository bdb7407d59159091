"""REQ-0025, REQ-0026: names, tags, versions, and what a worker takes."""

import pytest
from packaging.tags import Tag

from pyoco_server.domain.wheels import (
    Wheel,
    after_failures,
    check_version,
    described,
    plan,
    read_name,
    read_tags,
    select,
)
from pyoco_server.errors import InvalidRequest, WheelVersionConflict
from support.tables import every_row
from support.wheels import wheel_name

HERE = [Tag("py3", "none", "any"), Tag("cp311", "cp311", "linux_x86_64")]


def registered(name: str, *tags: str, nuid: str = "") -> Wheel:
    return Wheel(name=name, size_bytes=1, bucket="b", nuid=nuid or name, modified=1.0, sha256=None, tags=tags)


@every_row(
    "name",
    [
        "",
        "x",
        "x.whl",
        "../x-1-py3-none-any.whl",
        "a/x-1-py3-none-any.whl",
        "x-1-py3-none-any.whl.exe",
        "x-one-py3-none-any.whl",
        "x-1-py3-none-any.whl\n",
        "x\x00-1-py3-none-any.whl",
        "a" * 300 + "-1-py3-none-any.whl",
        "a\\x-1-py3-none-any.whl",
    ],
)
def test_what_is_not_the_name_of_a_wheel_is_refused(name: str) -> None:
    """ERR-PYOCO-0002"""
    with pytest.raises(InvalidRequest):
        read_name(name)


def test_packages_are_compared_by_their_normal_name() -> None:
    assert read_name("My_Flows-1.0-py3-none-any.whl").package == "my-flows"


def test_tags_are_read_once_each_in_their_order() -> None:
    assert read_tags(" cpu, linux ,cpu,,") == ("cpu", "linux")
    assert read_tags("") == ()


@pytest.mark.parametrize("text", ["a.b", "a b", "*", ">", "x" * 65, ",".join(f"t{n}" for n in range(33))])
def test_tags_that_could_not_be_a_workers_are_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        read_tags(text)


@pytest.mark.parametrize("version", ["1.0", "1.0.0", "0.9", "1.0rc1", "1.0.dev3"])
def test_the_same_and_older_versions_are_refused(version: str) -> None:
    """ERR-PYOCO-0022"""
    known = [registered(wheel_name("my_flows", "1.0")), registered(wheel_name("other", "9.0"))]
    with pytest.raises(WheelVersionConflict, match="raise the version"):
        check_version(read_name(wheel_name("My.Flows".replace(".", "_"), version)), known)


@pytest.mark.parametrize("version", ["1.0.1", "1.1", "2.0", "1.0.post1"])
def test_newer_versions_are_taken(version: str) -> None:
    check_version(read_name(wheel_name("my_flows", version)), [registered(wheel_name("my_flows", "1.0"))])


def test_a_worker_takes_the_newest_wheel_of_each_package_that_is_meant_for_it() -> None:
    wheels = [
        registered(wheel_name("a", "1.9"), "cpu"),
        registered(wheel_name("a", "1.10"), "cpu", "gpu"),
        registered(wheel_name("b", "1.0")),
        registered(wheel_name("c", "1.0"), "gpu"),
    ]
    selection = select(wheels, ["cpu"], HERE)
    assert [wheel.name for wheel in selection.wheels] == [wheel_name("a", "1.10"), wheel_name("b", "1.0")]
    assert selection.skipped == []


def test_a_newer_version_for_another_platform_does_not_hide_the_one_that_runs_here() -> None:
    foreign = registered(wheel_name("a", "2.0", "cp311-cp311-win_amd64"))
    selection = select([registered(wheel_name("a", "1.0")), foreign], [], HERE)
    assert [wheel.name for wheel in selection.wheels] == [wheel_name("a", "1.0")]
    assert [(wheel.name, reason) for wheel, reason in selection.skipped] == [
        (foreign.name, "not built for this Python or platform")
    ]


def test_what_another_program_put_there_is_skipped_and_shown() -> None:
    selection = select([registered("notes.txt")], [], HERE)
    assert (selection.wheels, selection.skipped[0][0].name) == ([], "notes.txt")


def test_only_what_changed_is_installed_and_only_what_is_gone_is_dropped() -> None:
    one, two, three = (registered(wheel_name(name), nuid=name) for name in ("a", "b", "c"))
    again = registered(wheel_name("b"), nuid="b2")
    planned = plan([one, again], [described(one), described(two), described(three)])
    assert ([w.nuid for w in planned.install], [w.nuid for w in planned.keep]) == (["b2"], ["a"])
    assert [w.nuid for w in planned.drop] == ["b", "c"]


def test_where_a_new_version_cannot_be_installed_the_old_one_stays() -> None:
    old, gone = described(registered(wheel_name("a", "1.0"))), described(registered(wheel_name("x", "1.0")))
    new = registered(wheel_name("a", "2.0"))
    planned = plan([new], [old, gone])
    assert after_failures(planned, [], [new]) == [old]
    assert after_failures(planned, [described(new)], []) == [described(new)]
