"""Signed events: each kind of signature, the window, the change of secrets, and forgeries."""

import base64
import hashlib
import hmac
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec.structs import replace
from nacl.signing import SigningKey
from standardwebhooks import Webhook

from pyoco_server.domain.events.requests import choose_key
from pyoco_server.domain.events.sources import Source, check_source, read_signed, verify
from pyoco_server.errors import InvalidEventToken, InvalidRequest
from support.builders import NOW

BODY = b'{"type": "invoice.paid", "id": "evt_1", "data": {"x": 1}}'
SECRET = "whsec_" + base64.b64encode(b"a secret of 24 bytes abc").decode()
OTHER = "whsec_" + base64.b64encode(b"another secret 24 bytes!").decode()


def hexed(secret: str, data: bytes) -> str:
    return hmac.new(secret.encode(), data, hashlib.sha256).hexdigest()


def standard(secret: str = SECRET, at: float = NOW, body: bytes = BODY) -> dict[str, str]:
    signature = Webhook(secret).sign("msg_1", datetime.fromtimestamp(at, UTC), body.decode())
    return {"webhook-id": "msg_1", "webhook-timestamp": str(int(at)), "webhook-signature": signature}


def public_key_of(seed: str) -> str:
    return "whpk_" + base64.b64encode(SigningKey(seed.encode()[:32]).verify_key.encode()).decode()


def asymmetric(secret: str = SECRET, at: float = NOW, body: bytes = BODY) -> dict[str, str]:
    """Signed with the key whose seed is the secret."""
    signed = SigningKey(secret.encode()[:32]).sign(f"msg_1.{int(at)}.".encode() + body)
    signature = base64.b64encode(signed.signature).decode()
    return {
        "webhook-id": "msg_1",
        "webhook-timestamp": str(int(at)),
        "webhook-signature": f"v1,{'A' * 44} v1a,{signature}",
    }


def github(secret: str = SECRET, at: float = NOW, body: bytes = BODY) -> dict[str, str]:
    signature = f"sha256={hexed(secret, body)}"
    return {"x-hub-signature-256": signature, "x-github-event": "push", "x-github-delivery": "d-1"}


def stripe(secret: str = SECRET, at: float = NOW, body: bytes = BODY) -> dict[str, str]:
    signature = hexed(secret, f"{int(at)}.".encode() + body)
    return {"stripe-signature": f"t={int(at)},v0=nonsense,v1={signature}"}


def plain(secret: str = SECRET, at: float = NOW, body: bytes = BODY) -> dict[str, str]:
    return {"x-signature": hexed(secret, body)}


def timed(secret: str = SECRET, at: float = NOW, body: bytes = BODY) -> dict[str, str]:
    return {"x-signature": f"sha256={hexed(secret, f'{int(at)}.'.encode() + body)}", "x-time": str(int(at))}


Sign = Callable[..., dict[str, str]]
KINDS: dict[str, tuple[Sign, dict[str, Any]]] = {
    "standard": (standard, {"kind": "standard"}),
    "github": (github, {"kind": "github"}),
    "stripe": (stripe, {"kind": "stripe"}),
    "hmac": (plain, {"kind": "hmac"}),
    "hmac with a time": (timed, {"kind": "hmac", "timestamp_header": "X-Time"}),
}
ALL = pytest.mark.parametrize(("sign", "settings"), KINDS.values(), ids=KINDS.keys())
WITH_TIME = pytest.mark.parametrize(
    ("sign", "settings"),
    [KINDS[kind] for kind in ("standard", "stripe", "hmac with a time")],
    ids=["standard", "stripe", "hmac"],
)


def source(*secrets: str, **settings: Any) -> Source:
    return Source(id="s", updated_at="", secrets=secrets or (SECRET,), **settings)


def is_accepted(of: Source, headers: dict[str, str], body: bytes = BODY, now: float = NOW) -> bool:
    try:
        verify(of, body, headers, now)
    except InvalidEventToken:
        return False
    return True


@ALL
def test_what_is_signed_with_the_secret_is_accepted(sign: Sign, settings: dict[str, Any]) -> None:
    assert is_accepted(source(**settings), sign())


@ALL
def test_anything_else_is_refused(sign: Sign, settings: dict[str, Any]) -> None:
    of = source(**settings)
    assert not is_accepted(of, sign(OTHER)), "another secret"
    assert not is_accepted(of, sign(), BODY + b" "), "another body"
    assert not is_accepted(of, {}), "no signature"
    for name in sign():
        if name.startswith("x-github"):
            continue
        assert not is_accepted(of, {**sign(), name: ""}), f"no {name}"
        assert not is_accepted(of, {**sign(), name: "ä,=,. v1,"}), f"nonsense in {name}"


@ALL
def test_two_secrets_live_at_once_while_they_are_changed(sign: Sign, settings: dict[str, Any]) -> None:
    both = source(OTHER, SECRET, **settings)
    assert is_accepted(both, sign(SECRET))
    assert is_accepted(both, sign(OTHER))
    assert not is_accepted(source(OTHER, **settings), sign(SECRET))


@WITH_TIME
def test_the_window_is_five_minutes(sign: Sign, settings: dict[str, Any]) -> None:
    of = source(**settings)
    for age, expected in ((300, True), (-300, True), (301, False), (-301, False)):
        assert is_accepted(of, sign(at=NOW - age)) is expected, age


def test_one_of_several_standard_signatures_is_enough() -> None:
    headers = standard()
    headers["webhook-signature"] = f"v1a,xxxx v1,{'A' * 44} {headers['webhook-signature']}"
    assert is_accepted(source(kind="standard"), headers)


def test_an_ed25519_signature_is_verified_with_the_public_key() -> None:
    of = source(public_key_of(SECRET), kind="standard")
    assert is_accepted(check_source(of), asymmetric())
    assert not is_accepted(of, asymmetric(OTHER)), "another key"
    assert not is_accepted(of, asymmetric(), BODY + b" "), "another body"
    assert not is_accepted(of, {**asymmetric(), "webhook-id": "msg_2"}), "another id"
    assert not is_accepted(of, asymmetric(at=NOW - 301)), "too old"
    assert not is_accepted(of, standard()), "a public key is no shared secret"
    by_public_key = Webhook(base64.b64decode(of.secrets[0].removeprefix("whpk_")))
    forged = by_public_key.sign("msg_1", datetime.fromtimestamp(NOW, UTC), BODY.decode())
    assert not is_accepted(of, {**asymmetric(), "webhook-signature": forged}), "known to everybody"


@pytest.mark.parametrize(
    "signature", ["v1a,", "v1a", "v1a,!", "v1a,QUJD", "v1a,ä", "v1," + "A" * 88, ",", ""]
)
def test_what_is_no_ed25519_signature_is_refused(signature: str) -> None:
    of = source(public_key_of(SECRET), kind="standard")
    assert not is_accepted(of, {**asymmetric(), "webhook-signature": signature})


def test_a_sender_may_change_from_a_shared_secret_to_a_key_pair() -> None:
    of = source(SECRET, public_key_of(OTHER), kind="standard")
    assert is_accepted(of, standard(SECRET))
    assert is_accepted(of, asymmetric(OTHER))


def test_a_signed_cloud_event_is_read_as_one() -> None:
    body = b'{"specversion": "1.0", "id": "7", "type": "paid", "source": "/shop", "data_base64": "W10="}'
    headers = {"content-type": "application/cloudevents+json"}
    found = read_signed(source(kind="standard"), body, {**headers, **standard(body=body)})
    assert (found.event_name, found.source, found.key, found.data) == ("paid", "/shop", "msg_1", [])
    assert read_signed(source(kind="hmac"), body, headers).key != "msg_1"


def test_a_body_that_is_no_text_is_refused() -> None:
    assert not is_accepted(source(kind="standard"), standard(), b"\xff")


def test_githubs_event_is_the_name_and_what_it_signs_is_the_key() -> None:
    """D57"""
    found = read_signed(source(kind="github"), BODY, github())
    assert (found.event_name, found.source) == ("push", "s")
    assert found.data["id"] == "evt_1", "the whole payload"
    again = read_signed(source(kind="github"), BODY, {**github(), "x-github-delivery": "a b"})
    assert (again.key, again.is_key_ignored) == (found.key, False)
    assert choose_key([found.key]).key == found.key
    assert read_signed(source(kind="github"), BODY + b" ", github()).key != found.key
    by_delivery = read_signed(source(kind="github", key_of="delivery"), BODY, github())
    assert by_delivery.key == "d-1"


def test_stripes_type_and_id_are_name_and_key() -> None:
    found = read_signed(source(kind="stripe"), BODY, stripe())
    assert (found.event_name, found.key, found.data["data"]) == ("invoice.paid", "evt_1", {"x": 1})


def test_a_standard_webhooks_type_id_and_data_are_name_key_and_data() -> None:
    found = read_signed(source(kind="standard"), BODY, standard())
    assert (found.event_name, found.key, found.data) == ("invoice.paid", "msg_1", {"x": 1})


def test_a_source_can_be_bound_to_a_template() -> None:
    of = source(kind="hmac", template_id="bound")
    found = read_signed(of, b'{"template_id": "other", "event_id": "e"}', plain())
    assert (found.template_id, found.key) == ("bound", "e")


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"id": "a b"}, "id:"),
        ({"secrets": ()}, "secrets:"),
        ({"secrets": (SECRET,) * 3}, "secrets:"),
        ({"secrets": ("short",)}, "secret 1"),
        ({"secrets": (SECRET, "ä" * 20)}, "secret 2"),
        ({"secrets": ("whsec_" + "!" * 20,)}, "base64"),
        ({"secrets": ("whpk_" + "A" * 40,)}, "must have 32 bytes, not 30"),
        ({"secrets": ("whpk_" + "!" * 43,)}, "base64"),
        ({"secrets": ("whsk_" + "A" * 43,)}, "private key"),
        ({"template_id": "a b"}, "template_id:"),
    ],
)
def test_what_is_wrong_with_a_source_is_named_and_its_secret_is_not(
    changes: dict[str, Any], problem: str
) -> None:
    wanted = replace(source(kind="standard"), **changes)
    with pytest.raises(InvalidRequest) as raised:
        check_source(wanted)
    assert problem in raised.value.detail
    assert not any(secret in raised.value.detail for secret in wanted.secrets)
    assert not any(secret in repr(wanted) for secret in wanted.secrets)
