"""The key's text and the record made of it."""

import hashlib
from base64 import b64encode, urlsafe_b64encode

import msgspec
import pytest
from hypothesis import given, strategies as st
from msgspec.structs import replace

from pyoco_server.domain import codec
from pyoco_server.domain.auth import (
    HMAC,
    MAX_ITERATIONS,
    PBKDF2,
    ApiKey,
    ApiKeyRecord,
    fingerprint,
    new_record,
    parse,
    require_tenant_id,
    revoked,
    verify,
)
from pyoco_server.errors import InvalidRequest
from support.tables import every_row

ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-"
key_ids = st.text(ALPHABET, min_size=1, max_size=64)
secret_texts = st.text(ALPHABET, min_size=16, max_size=256)
salts = st.binary(min_size=16, max_size=16)
peppers = st.text(max_size=40)

SECRET = "s" * 43
SALT = b"0123456789abcdef"


def pbkdf2_record(password: str, *, iterations: int = 1000, **fields: str) -> ApiKeyRecord:
    hashed = hashlib.pbkdf2_hmac("sha256", password.encode(), SALT, iterations)
    return ApiKeyRecord(
        key_id="k1",
        tenant_id="t1",
        kdf=PBKDF2,
        iterations=iterations,
        salt_b64=fields.get("salt_b64", urlsafe_b64encode(SALT).decode().rstrip("=")),
        hash_b64=fields.get("hash_b64", urlsafe_b64encode(hashed).decode().rstrip("=")),
        created_at=1.0,
    )


@given(key_ids, secret_texts, salts, peppers)
def test_a_new_record_verifies_its_own_secret(key_id: str, secret: str, salt: bytes, pepper: str) -> None:
    assert verify(new_record(key_id, "t", secret, salt, pepper, 1.0), secret, pepper)


@given(secret_texts, secret_texts, salts, peppers)
def test_another_secret_fails(secret: str, other: str, salt: bytes, pepper: str) -> None:
    record = new_record("k", "t", secret, salt, pepper, 1.0)
    assert verify(record, other, pepper) is (other == secret)


@given(secret_texts, salts, peppers, peppers)
def test_another_pepper_fails(secret: str, salt: bytes, pepper: str, other: str) -> None:
    record = new_record("k", "t", secret, salt, pepper, 1.0)
    assert verify(record, secret, other) is (other == pepper)


@given(st.text())
def test_parsing_never_raises(text: str) -> None:
    found = parse(text)
    assert found is None or found.text == text


@given(key_ids, secret_texts)
def test_a_key_is_read_back_from_its_own_text(key_id: str, secret: str) -> None:
    assert parse(ApiKey(key_id, secret).text) == ApiKey(key_id, secret)


@every_row(
    "text",
    [
        "",
        "pyoco_",
        f"pyoco_.{SECRET}",
        "pyoco_k1.",
        "pyoco_k1.short",
        f"PYOCO_k1.{SECRET}",
        f" pyoco_k1.{SECRET}",
        f"pyoco_k1.{SECRET}\n",
        f"pyoco_k1.more.{SECRET}",
        f"pyoco_*.{SECRET}",
        f"pyoco_>.{SECRET}",
        f"pyoco_{'k' * 65}.{SECRET}",
        f"pyoco_k1.{'s' * 257}",
        f"pyoco_k1.{SECRET}é",
        f"pyoco_k１.{SECRET}",
    ],
)
def test_what_is_not_exactly_a_key_is_none(text: str) -> None:
    assert parse(text) is None


def test_a_key_does_not_show_its_secret_when_it_is_printed() -> None:
    assert SECRET not in repr(ApiKey("k1", SECRET))


@given(st.text(max_size=100), st.text(max_size=100), st.sampled_from([PBKDF2, HMAC, "", "scrypt"]))
def test_a_damaged_record_verifies_nothing_and_never_raises(salt_b64: str, hash_b64: str, kdf: str) -> None:
    record = ApiKeyRecord(
        key_id="k1", tenant_id="t", kdf=kdf, iterations=1, salt_b64=salt_b64, hash_b64=hash_b64
    )
    assert not verify(record, SECRET, "")


def test_a_pbkdf2_record_is_made_of_the_secret_and_the_pepper() -> None:
    record = pbkdf2_record(SECRET + "pepper")
    assert verify(record, SECRET, "pepper")
    assert not verify(record, SECRET, "")
    assert not verify(record, SECRET + "x", "pepper")


def test_both_base64_alphabets_are_read() -> None:
    hashed = hashlib.pbkdf2_hmac("sha256", SECRET.encode(), b"\xfb\xff" * 8, 1)
    record = pbkdf2_record(
        SECRET,
        iterations=1,
        salt_b64=b64encode(b"\xfb\xff" * 8).decode(),
        hash_b64=b64encode(hashed).decode(),
    )
    assert "+" in record.salt_b64
    assert verify(record, SECRET, "")


@pytest.mark.parametrize("iterations", [0, -1, MAX_ITERATIONS + 1])
def test_a_record_cannot_ask_for_an_absurd_number_of_iterations(iterations: int) -> None:
    record = replace(pbkdf2_record(SECRET), iterations=iterations)
    assert not verify(record, SECRET, "")


@pytest.mark.parametrize("missing", ["kdf", "iterations", "salt_b64", "hash_b64"])
def test_a_record_that_does_not_say_how_it_was_hashed_is_unreadable(missing: str) -> None:
    record = msgspec.to_builtins(pbkdf2_record(SECRET))
    del record[missing]
    with pytest.raises(codec.Unreadable):
        codec.decode_api_key(msgspec.json.encode(record))


def test_fields_of_other_makes_are_ignored() -> None:
    record = {**msgspec.to_builtins(pbkdf2_record(SECRET)), "unknown": [1]}
    assert verify(codec.decode_api_key(msgspec.json.encode(record)), SECRET, "")


def test_a_record_survives_the_wire() -> None:
    record = new_record("k1", "t1", SECRET, SALT, "", 12.5)
    assert codec.decode_api_key(codec.encode(record)) == record
    assert SECRET.encode() not in codec.encode(record)


def test_revoking_twice_keeps_the_first_moment() -> None:
    record = revoked(new_record("k1", "t1", SECRET, SALT, "", 1.0), 2.0)
    assert record.is_revoked
    assert revoked(record, 3.0).revoked_at == 2.0


@pytest.mark.parametrize("tenant", ["", "a.b", "*", "t" * 65, "t\n", "ü"])
def test_a_tenant_is_one_plain_token(tenant: str) -> None:
    with pytest.raises(InvalidRequest, match="tenant"):
        require_tenant_id(tenant)


def test_a_fingerprint_depends_on_the_secret_and_on_the_process() -> None:
    assert fingerprint("a", b"1") == fingerprint("a", b"1")
    assert len({fingerprint("a", b"1"), fingerprint("b", b"1"), fingerprint("a", b"2")}) == 3


def test_a_key_issued_by_a_server_of_another_make_is_verified() -> None:
    """Both were printed by such a server, with the pepper `pepper`."""
    presented = parse("pyoco_22d42168f073bc56557c6543.BvS12DarSd1O4WeV4zW7F5BxrqwxjpfA5f_t4DxwICI")
    record = codec.decode_api_key(
        b'{"key_id":"22d42168f073bc56557c6543","tenant_id":"acme","kdf":"pbkdf2_hmac_sha256","iterations":200000,"salt_b64":"RVq5G9oLGY9iojcFhBlSKw","hash_b64":"NFpGSeH-YRHIahQc6PsnEqC5Jc5kf0RJ1us-Jejj57s","created_at":1794789971.831048,"revoked_at":null}'
    )
    assert presented is not None
    assert presented.key_id == record.key_id
    assert verify(record, presented.secret, "pepper")
    assert not verify(record, presented.secret, "")
