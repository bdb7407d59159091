"""REQ-0025: on which Pythons and platforms a wheel can be installed."""

import pytest

from pyoco_server.domain.wheels import Fit, fit_of, read_name
from pyoco_server.errors import InvalidRequest
from support.wheels import wheel_name


def fit(tags: str, requires_python: str = "") -> Fit:
    return fit_of(read_name(wheel_name(tags=tags)).tags, requires_python)


@pytest.mark.parametrize("tags", ["py3-none-any", "py2.py3-none-any", "py39-none-any"])
def test_python_only_wheels_fit_everywhere(tags: str) -> None:
    assert fit(tags).is_everywhere


@pytest.mark.parametrize(
    "tags",
    [
        "py2-none-any",
        "cp310-cp310-manylinux2014_x86_64",
        "cp310-none-any",
        "pp310-pypy310_pp73-manylinux2014_x86_64",
        "py3-none-win_amd64",
        "cp311-cp311-win_amd64",
    ],
)
def test_wheels_that_no_worker_can_install_are_known(tags: str) -> None:
    assert fit(tags).minors == ()


@pytest.mark.parametrize(
    ("tags", "pythons", "platforms"),
    [
        ("cp311-cp311-manylinux2014_x86_64", "3.11", ("manylinux2014_x86_64",)),
        ("cp311.cp312-cp311.cp312-manylinux2014_x86_64", "3.11, 3.12", ("manylinux2014_x86_64",)),
        ("cp313-cp313t-macosx_11_0_arm64", "3.13", ("macosx_11_0_arm64",)),
        ("cp39-abi3-manylinux2014_aarch64", "3.11+", ("manylinux2014_aarch64",)),
        ("py3-none-win_amd64.macosx_11_0_arm64", "3.11+", ("macosx_11_0_arm64",)),
        ("py312-none-any", "3.12+", ()),
        ("cp315-cp315-linux_x86_64", "3.15", ("linux_x86_64",)),
    ],
)
def test_wheels_that_only_some_workers_install_say_which(
    tags: str, pythons: str, platforms: tuple[str, ...]
) -> None:
    found = fit(tags)
    assert (found.pythons, found.platforms, found.is_everywhere) == (pythons, platforms, False)


@pytest.mark.parametrize(
    ("requires", "minors"), [("<3.11", ()), (">=3.11.4,<3.12", (11,)), ("==3.12.*", (12,))]
)
def test_the_metadata_may_allow_less_than_the_name(requires: str, minors: tuple[int, ...]) -> None:
    assert fit("py3-none-any", requires).minors == minors


def test_a_limit_that_nobody_can_read_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="Requires-Python 'three'"):
        fit("py3-none-any", "three")
