"""Names from outside, before they become part of a subject or a key."""

import pytest
from hypothesis import given, strategies as st

from pyoco_server.domain.inputs import is_run_id, is_tag, is_worker_id, require_tag
from pyoco_server.errors import InvalidRequest
from support.builders import RUN_ID
from support.tables import every_row


@pytest.mark.parametrize("tag", ["default", "a", "GPU-2_x", "0", "-", "x" * 64])
def test_a_tag_is_one_token_of_a_subject(tag: str) -> None:
    assert is_tag(tag)
    assert require_tag(tag) == tag


@every_row("tag", ["", "a.b", "a b", "*", ">", "x" * 65, "tag\n", "日本", "a/b", "$KV"])
def test_what_would_change_a_subject_is_no_tag(tag: str) -> None:
    assert not is_tag(tag)
    with pytest.raises(InvalidRequest, match="tag"):
        require_tag(tag)


@pytest.mark.parametrize(("text", "expected"), [(RUN_ID, True), (RUN_ID.upper(), True)])
def test_a_uuid_is_a_run_id(text: str, *, expected: bool) -> None:
    assert is_run_id(text) is expected


@every_row(
    "text",
    [
        "",
        "run",
        RUN_ID.replace("-", ""),
        f"{{{RUN_ID}}}",
        f"urn:uuid:{RUN_ID}",
        f"{RUN_ID}\n",
        f" {RUN_ID}",
        "*",
    ],
)
def test_other_spellings_of_a_uuid_are_no_run_ids(text: str) -> None:
    assert not is_run_id(text)


@given(st.text())
def test_a_text_that_is_a_run_id_has_only_hexadecimals_and_dashes(text: str) -> None:
    assert not is_run_id(text) or set(text.lower()) <= set("0123456789abcdef-")


@pytest.mark.parametrize("name", ["worker", "host.example.com", "a_b-c", "x" * 128])
def test_a_host_name_is_a_worker_id(name: str) -> None:
    assert is_worker_id(name)


@every_row("name", ["", ".", "a.", ".a", "a..b", "a b", "a*", ">", "x" * 129, "a\n"])
def test_what_a_bucket_cannot_have_as_a_key_is_no_worker_id(name: str) -> None:
    assert not is_worker_id(name)
