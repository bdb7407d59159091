"""Secrets in what flows return and print are masked."""

import json
from urllib.parse import quote

import pytest
from hypothesis import example, given, strategies as st

from pyoco_server.domain.secrets.masking import MASK, LineMask, Masks

SECRETS = st.text(
    alphabet=st.characters(exclude_characters="•…", exclude_categories=["Cs"]), min_size=1, max_size=12
)


@given(st.lists(SECRETS, min_size=1, max_size=3), st.lists(st.integers(0, 3) | st.text(max_size=5)))
@example(["abc123", "123xyz"], ["abc123xyz"])
def test_no_secret_is_left_whatever_surrounds_it(secrets: list[str], pieces: list[int | str]) -> None:
    text = "".join(secrets[piece % len(secrets)] if isinstance(piece, int) else piece for piece in pieces)
    masked = Masks(secrets).text(text)
    assert not any(secret in masked for secret in secrets)


@given(SECRETS, st.text(max_size=5))
def test_forms_of_python_and_json_are_masked(secret: str, around: str) -> None:
    masks = Masks([secret])
    whole = around + secret + around
    for written in (
        repr(whole),
        ascii(whole),
        repr({"a": [whole]}),
        repr(whole.encode()),
        json.dumps(whole),
        json.dumps(whole, ensure_ascii=False),
        json.dumps({"a": json.dumps(whole)}),
        repr(repr(whole)),
        quote(whole),
    ):
        assert MASK in masks.text(written), written


def test_values_are_masked_at_any_depth_and_others_are_the_same_objects() -> None:
    masks = Masks(["hunter2", "1234"])
    value = {"a": ["x hunter2 y", 1234, 12345, True, None], "hunter2": {"b": ("hunter2",)}}
    assert masks.value(value) == {"a": [f"x {MASK} y", MASK, 12345, True, None], MASK: {"b": [MASK]}}
    for clean in ({"a": [1, {"b": "c"}]}, [1, (2,)], "text", 5, None, {1: 2}):
        assert masks.value(clean) is clean


def test_lines_of_a_value_with_several_lines_are_masked_alone() -> None:
    masks = Masks(["-----BEGIN KEY-----\nMIIEvQIBADANBg\n}\n-----END KEY-----\n"])
    assert masks.text("got MIIEvQIBADANBg!") == f"got {MASK}!"
    assert masks.text("}") == "}"


def test_a_preview_that_was_cut_within_a_secret_is_masked() -> None:
    assert Masks(["correct-horse"]).text("<Account password='correct-ho…") == f"<Account password='{MASK}…"


@given(SECRETS.filter(lambda text: len(text) >= 8 and "\n" not in text), st.data())
def test_a_secret_printed_in_pieces_is_masked_wherever_it_is_split(secret: str, data: st.DataObject) -> None:
    """With a line end between the pieces: `print(secret[:n]); print(secret[n:])`."""
    cut = data.draw(st.integers(4, len(secret) - 1))
    lines: LineMask[int] = LineMask(Masks([secret]))
    printed = [f"> {secret[:cut]}\n", f"{secret[cut:]} <\n", "after\n"]
    found = [one for number, line in enumerate(printed) for one in lines.add(line, number)] + lines.rest()
    assert [number for _, number in found] == [0, 1, 2], "no line is lost, and none overtakes another"
    assert secret[cut:] + " <" not in found[1][0]
    joined = "".join(text.removesuffix("\n") for text, _ in found)
    assert secret not in joined
    assert MASK in joined


def test_a_line_that_only_begins_like_a_secret_is_shown_with_the_next() -> None:
    lines: LineMask[None] = LineMask(Masks(["correct-horse"]))
    assert lines.add("this is correct\n", None) == []
    assert lines.add("indeed\n", None) == [("this is correct\n", None), ("indeed\n", None)]
    assert lines.add("all correct\n", None) == []
    assert lines.rest() == [("all correct\n", None)]


@pytest.mark.parametrize("pieces", [["cor", "rect-", "horse"], ["correct-horse"], list("correct-horse")])
def test_pieces_of_one_line_are_joined_before_they_are_masked(pieces: list[str]) -> None:
    from pyoco_server.engine.print_capture import PrintCapture  # noqa: PLC0415

    class Nowhere:
        def read_pipes(self) -> None: ...
        def begin_run(self, capture: PrintCapture) -> None: ...
        def end_run(self) -> None: ...

    with PrintCapture(Nowhere(), lambda: None, masks=Masks(["correct-horse"])) as capture:
        for piece in pieces:
            capture.printed("stdout", piece)
        capture.printed("stdout", "!\n")
    assert "".join(entry.text for entry in capture.take()) == f"{MASK}!\n"
