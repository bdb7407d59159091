"""Settings: the contract's defaults, read loudly."""

from dataclasses import fields
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from pyoco_server.config import NatsBackendConfig, env_name, is_set, setting_names
from pyoco_server.environment import secret_variable
from pyoco_server.errors import ConfigError
from support.tables import every_row

# Appendix I of the contract.
DEFAULTS: dict[str, Any] = {
    "PYOCO_NATS_URL": "nats://127.0.0.1:4222",
    "PYOCO_WORK_SUBJECT_PREFIX": "pyoco.work",
    "PYOCO_DEFAULT_TAG": "default",
    "PYOCO_RUNS_KV_BUCKET": "pyoco_runs",
    "PYOCO_WORKERS_KV_BUCKET": "pyoco_workers",
    "PYOCO_HTTP_AUTH_MODE": "none",
    "PYOCO_HTTP_API_KEY_HEADER": "X-API-Key",
    "PYOCO_AUTH_KV_BUCKET": "pyoco_auth",
    "PYOCO_AUTH_PEPPER": "",
    "PYOCO_RUN_HEARTBEAT_INTERVAL_SEC": 1.0,
    "PYOCO_WORKER_HEARTBEAT_INTERVAL_SEC": 5.0,
    "PYOCO_WORKERS_KV_TTL_SEC": 15.0,
    "PYOCO_WORKER_DISCONNECT_TIMEOUT_SEC": 20.0,
    "PYOCO_CANCEL_GRACE_PERIOD_SEC": 30.0,
    "PYOCO_CONSUMER_ACK_WAIT_SEC": 30.0,
    "PYOCO_CONSUMER_MAX_DELIVER": 20,
    "PYOCO_CONSUMER_MAX_ACK_PENDING": 200,
    "PYOCO_ACK_PROGRESS_INTERVAL_SEC": 10.0,
    "PYOCO_DLQ_STREAM": "PYOCO_DLQ",
    "PYOCO_DLQ_SUBJECT_PREFIX": "pyoco.dlq",
    "PYOCO_DLQ_PUBLISH_EXECUTION_ERROR": True,
    "PYOCO_DLQ_MAX_AGE_SEC": 604_800,
    "PYOCO_DLQ_MAX_MSGS": 100_000,
    "PYOCO_DLQ_MAX_BYTES": 536_870_912,
    "PYOCO_MAX_RUN_SNAPSHOT_BYTES": 262_144,
    "PYOCO_WORKFLOW_YAML_MAX_BYTES": 262_144,
    "PYOCO_WHEEL_OBJECT_STORE_BUCKET": "pyoco_wheels",
    "PYOCO_WHEEL_MAX_BYTES": 536_870_912,
    "PYOCO_WHEEL_SYNC_ENABLED": False,
    "PYOCO_WHEEL_SYNC_DIR": ".pyoco/wheels",
    "PYOCO_WHEEL_SYNC_INTERVAL_SEC": 10.0,
    "PYOCO_WHEEL_INSTALL_TIMEOUT_SEC": 180.0,
    "PYOCO_WHEEL_HISTORY_KV_BUCKET": "pyoco_wheel_history",
    "PYOCO_WHEEL_HISTORY_TTL_SEC": 7_776_000,
    "PYOCO_DASHBOARD_LANG": "auto",
    "PYOCO_LOAD_DOTENV": True,
    "PYOCO_ENV_FILE": ".env",
    "PYOCO_LOG_LEVEL": "INFO",
    "PYOCO_LOG_FORMAT": "json",
    "PYOCO_LOG_UTC": True,
    "PYOCO_LOG_INCLUDE_TRACEBACK": True,
}


def problems_of(environ: dict[str, str]) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        NatsBackendConfig.from_env(environ)
    return raised.value.problems


def test_the_defaults_are_those_of_the_contract() -> None:
    config = NatsBackendConfig.from_env({})
    found = {env_name(field.name): getattr(config, field.name) for field in fields(config)}
    assert {key: found[key] for key in DEFAULTS} == DEFAULTS


EVENT_DEFAULTS: dict[str, Any] = {
    "AX_WORKFLOW_EVENT_TOKEN": "",
    "AX_WORKFLOW_EVENT_TENANT": "default",
    "AX_WORKFLOW_EVENT_STRICT_KEYS": False,
    "AX_WORKFLOW_EVENT_MAX_RECEIPTS": 1000,
    "AX_WORKFLOW_EVENT_RECEIPT_TTL_DAYS": 90,
    "AX_WORKFLOW_EVENT_RETRY_MAX_ATTEMPTS": 3,
    "AX_WORKFLOW_EVENT_RETRY_BASE_DELAY_SECONDS": 30,
    "AX_WORKFLOW_EVENT_RETRY_TERMINAL_TTL_DAYS": 30,
    "AX_WORKFLOW_EVENT_RETRY_MAX_JOBS": 2000,
    "AX_WORKFLOW_EVENT_RETRY_WORKER_ENABLED": True,
    "AX_WORKFLOW_EVENT_RETRY_WORKER_POLL_SECONDS": 30,
    "AX_GOOGLE_CHAT_WEBHOOK_URL": "",
    "AX_AUDIT_LOG_PATH": "reports/audit_log.jsonl",
}


def test_the_defaults_of_events_are_those_of_the_contract() -> None:
    config = NatsBackendConfig.from_env({})
    found = {env_name(field.name): getattr(config, field.name) for field in fields(config)}
    assert {key: found[key] for key in EVENT_DEFAULTS} == EVENT_DEFAULTS


def test_an_empty_path_switches_the_audit_file_off() -> None:
    assert NatsBackendConfig.from_env({"AX_AUDIT_LOG_PATH": ""}).audit_log_path == ""


def test_a_bad_value_of_a_secret_is_not_shown() -> None:
    with pytest.raises(ConfigError) as raised:
        NatsBackendConfig(workflow_event_token=5)  # type: ignore[arg-type]
    assert raised.value.problems[0].startswith("AX_WORKFLOW_EVENT_TOKEN=***")


@every_row(
    ("key", "text", "expected"),
    [
        ("PYOCO_NATS_URL", "nats://a:1,nats://b:2", "nats://a:1,nats://b:2"),
        ("PYOCO_CONSUMER_MAX_DELIVER", "3", 3),
        ("PYOCO_CONSUMER_ACK_WAIT_SEC", "60", 60.0),
        ("PYOCO_WHEEL_SYNC_ENABLED", "1", True),
        ("PYOCO_LOG_UTC", "0", False),
        ("PYOCO_LOG_UTC", "false", False),
        ("PYOCO_LOG_LEVEL", "debug", "DEBUG"),
        ("PYOCO_DASHBOARD_LANG", " ja ", "ja"),
        ("PYOCO_DEFAULT_TAG", "", "default"),
        ("PYOCO_DEFAULT_TAG", "   ", "default"),
    ],
)
def test_an_environment_variable_sets_its_field(key: str, text: str, expected: Any) -> None:
    config = NatsBackendConfig.from_env({key: text})
    assert getattr(config, key.removeprefix("PYOCO_").lower()) == expected


@every_row(
    ("key", "text"),
    [
        ("PYOCO_CONSUMER_MAX_DELIVER", "many"),
        ("PYOCO_CONSUMER_MAX_DELIVER", "0"),
        ("PYOCO_CONSUMER_MAX_DELIVER", "1.5"),
        ("PYOCO_CONSUMER_ACK_WAIT_SEC", "-1"),
        ("PYOCO_CONSUMER_ACK_WAIT_SEC", "nan"),
        ("PYOCO_CONSUMER_ACK_WAIT_SEC", "inf"),
        ("PYOCO_DLQ_MAX_AGE_SEC", "inf"),
        ("PYOCO_RUNS_KV_BUCKET", "with.dot"),
        ("PYOCO_WORK_STREAM", "with blank"),
        ("PYOCO_WORK_SUBJECT_PREFIX", "work.*"),
        ("PYOCO_WORK_SUBJECT_PREFIX", "work."),
        ("PYOCO_DEFAULT_TAG", "a.b"),
        ("PYOCO_HTTP_AUTH_MODE", "password"),
        ("PYOCO_HTTP_API_KEY_HEADER", "X API Key"),
        ("PYOCO_LOG_FORMAT", "xml"),
        ("PYOCO_LOG_LEVEL", "LOUD"),
        ("PYOCO_LOG_UTC", "perhaps"),
        ("PYOCO_DASHBOARD_LANG", "fr"),
        ("PYOCO_JETSTREAM_REPLICAS", "6"),
        ("PYOCO_MAX_RUN_SNAPSHOT_BYTES", "1023"),
    ],
)
def test_a_bad_value_is_named_with_its_key(key: str, text: str) -> None:
    (problem,) = problems_of({key: text})
    assert problem.startswith(f"{key}={text!r}: ")


def test_all_bad_values_are_told_at_once() -> None:
    bad = {"PYOCO_LOG_FORMAT": "xml", "PYOCO_DLQ_MAX_MSGS": "0", "PYOCO_DASHBOARD_LANG": "fr"}
    assert {problem.partition("=")[0] for problem in problems_of(bad)} == set(bad)


def test_a_bad_value_given_by_a_program_is_told_the_same_way() -> None:
    wrong: dict[str, Any] = {"ack_progress_interval_sec": "often", "log_level": "loud"}
    with pytest.raises(ConfigError) as raised:
        NatsBackendConfig(**wrong)
    assert {problem.partition(":")[0] for problem in raised.value.problems} == {
        "PYOCO_ACK_PROGRESS_INTERVAL_SEC='often'",
        "PYOCO_LOG_LEVEL='loud'",
    }


@pytest.mark.parametrize("interval", ["30", "31"])
def test_signs_of_progress_must_be_more_frequent_than_the_ack_wait(interval: str) -> None:
    """REQ-0010"""
    (problem,) = problems_of({"PYOCO_ACK_PROGRESS_INTERVAL_SEC": interval})
    assert f"PYOCO_ACK_PROGRESS_INTERVAL_SEC={float(interval)}" in problem
    assert "PYOCO_CONSUMER_ACK_WAIT_SEC=30.0" in problem


@pytest.mark.parametrize(("work", "dlq"), [("a.b", "a.b"), ("a", "a.b"), ("a.b.c", "a.b")])
def test_work_and_dead_letters_cannot_share_subjects(work: str, dlq: str) -> None:
    (problem,) = problems_of({"PYOCO_WORK_SUBJECT_PREFIX": work, "PYOCO_DLQ_SUBJECT_PREFIX": dlq})
    assert problem.startswith(f"PYOCO_DLQ_SUBJECT_PREFIX={dlq!r}: ")


def test_prefixes_that_only_look_alike_are_fine() -> None:
    environ = {"PYOCO_WORK_SUBJECT_PREFIX": "pyoco.work", "PYOCO_DLQ_SUBJECT_PREFIX": "pyoco.work2"}
    assert NatsBackendConfig.from_env(environ).dlq_subject_prefix == "pyoco.work2"


def test_options_of_a_command_line_come_last_and_absent_ones_change_nothing() -> None:
    config = NatsBackendConfig.from_env({"PYOCO_NATS_URL": "nats://env:1"}, nats_url="nats://option:1")
    assert config.nats_url == "nats://option:1"
    assert (
        NatsBackendConfig.from_env({"PYOCO_NATS_URL": "nats://env:1"}, nats_url=None).nats_url
        == "nats://env:1"
    )


def test_a_dotenv_file_is_read_and_the_real_environment_wins(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("PYOCO_DEFAULT_TAG=file\nPYOCO_LOG_FORMAT=text\nOTHER=1\n")
    config = NatsBackendConfig.from_env({"PYOCO_DEFAULT_TAG": "environment"})
    assert (config.default_tag, config.log_format) == ("environment", "text")


def test_a_dotenv_file_can_be_named(tmp_path: Path) -> None:
    """PYOCO_ENV_FILE"""
    (tmp_path / "other.env").write_text("PYOCO_DEFAULT_TAG=other\n")
    assert NatsBackendConfig.from_env({"PYOCO_ENV_FILE": "other.env"}).default_tag == "other"


def test_the_dotenv_file_can_be_switched_off(tmp_path: Path) -> None:
    """PYOCO_LOAD_DOTENV"""
    (tmp_path / ".env").write_text("PYOCO_DEFAULT_TAG=file\n")
    assert NatsBackendConfig.from_env({"PYOCO_LOAD_DOTENV": "0"}).default_tag == "default"


def test_a_bad_value_in_a_dotenv_file_is_named_too(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("PYOCO_DLQ_MAX_MSGS=few\n")
    assert problems_of({}) == ["PYOCO_DLQ_MAX_MSGS='few': Expected `int`, got `str`"]


def test_whether_a_setting_was_made_can_be_asked(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("PYOCO_NATS_URL=nats://file:1\n")
    assert is_set("nats_url", {})
    assert not is_set("nats_url", {"PYOCO_NATS_URL": "  "})
    assert not is_set("default_tag", {})


def test_the_pepper_is_never_shown() -> None:
    secret = "s3cret-pepper"  # noqa: S105
    assert secret not in repr(NatsBackendConfig(auth_pepper=secret))
    wrong: dict[str, Any] = {"auth_pepper": [secret]}
    with pytest.raises(ConfigError) as raised:
        NatsBackendConfig(**wrong)
    assert secret not in str(raised.value)
    assert "PYOCO_AUTH_PEPPER=***" in str(raised.value)


# Secrets in files

SECRETS = [field.name for field in fields(NatsBackendConfig) if "secret" in field.metadata]


def test_what_is_a_secret() -> None:
    assert SECRETS == [
        "nats_password",
        "auth_pepper",
        "secrets_key",
        "workflow_event_token",
        "google_chat_webhook_url",
    ]


def complete(key: str) -> dict[str, str]:
    return {"PYOCO_NATS_USER": "me"} if key == "PYOCO_NATS_PASSWORD" else {}


@pytest.mark.parametrize("name", [name for name in SECRETS if name != "secrets_key"])  # has a form
@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"s3cret\n", "s3cret"),
        (b"s3cret", "s3cret"),
        (b"s3cret\r\n", "s3cret"),
        (b"s3cret\n\n", "s3cret\n"),
        (b" s3cret \n", " s3cret "),
        (b"\xff\n", "\udcff"),
    ],
)
def test_a_secret_may_be_in_a_file_without_its_last_newline(
    tmp_path: Path, name: str, content: bytes, expected: str
) -> None:
    """D46"""
    file = tmp_path / "secret"
    file.write_bytes(content)
    key = env_name(name)
    config = NatsBackendConfig.from_env({**complete(key), f"{key}_FILE": str(file)})
    assert getattr(config, name) == expected


@pytest.mark.parametrize("name", SECRETS)
def test_a_secret_in_both_forms_is_refused_with_both_names(tmp_path: Path, name: str) -> None:
    """D46"""
    file = tmp_path / "secret"
    file.write_text("from-the-file")
    key = env_name(name)
    (problem,) = problems_of({**complete(key), key: "from-the-variable", f"{key}_FILE": str(file)})
    assert problem == f"{key} and {key}_FILE are both set; remove one of them"


@pytest.mark.parametrize("name", SECRETS)
def test_a_file_that_cannot_be_read_is_named_with_its_key(tmp_path: Path, name: str) -> None:
    """D46: a missing one, a directory, an empty one: it would switch the protection off."""
    (tmp_path / "empty").write_text("\n")
    key = env_name(name)
    for file, reason in (
        (tmp_path / "missing", "cannot be read (No such file or directory)"),
        (tmp_path, "cannot be read (Is a directory)"),
        (tmp_path / "empty", "the file is empty"),
    ):
        problems = problems_of({f"{key}_FILE": str(file), "PYOCO_LOG_FORMAT": "xml"})
        assert problems[0] == f"{key}_FILE={str(file)!r}: {reason}"
        assert len(problems) == 2


def test_the_form_of_the_environment_and_of_an_option_takes_precedence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("of-the-file")
    (tmp_path / ".env").write_text("PYOCO_AUTH_PEPPER=of-dotenv\n")
    assert NatsBackendConfig.from_env({"PYOCO_AUTH_PEPPER_FILE": "file"}).auth_pepper == "of-the-file"
    environ = {"PYOCO_AUTH_PEPPER": "of-the-variable", "PYOCO_AUTH_PEPPER_FILE": ""}
    assert NatsBackendConfig.from_env(environ).auth_pepper == "of-the-variable"
    assert NatsBackendConfig.from_env(environ, auth_pepper_file="file").auth_pepper == "of-the-file"
    missing = {"PYOCO_AUTH_PEPPER_FILE": "missing"}
    assert NatsBackendConfig.from_env(missing, auth_pepper=" option ").auth_pepper == " option "
    with pytest.raises(ConfigError):
        NatsBackendConfig.from_env({}, auth_pepper="option", auth_pepper_file="file")


def test_every_secret_is_known_in_both_forms() -> None:
    keys = [env_name(name) for name in SECRETS]
    assert {*keys, *(f"{key}_FILE" for key in keys)} <= set(setting_names())


def test_a_secret_of_a_command_may_be_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("pyoco_k.s\n")
    assert secret_variable("PYOCO_API_KEY", {"PYOCO_API_KEY_FILE": "key"}) == "pyoco_k.s"
    assert secret_variable("PYOCO_API_KEY", {"PYOCO_API_KEY": "k"}) == "k"
    assert secret_variable("PYOCO_API_KEY", {}) is None


# The login to NATS

LOGINS = {
    "the user in PYOCO_NATS_URL": {"PYOCO_NATS_URL": "nats://me:s3cret@a:1,nats://me:s3cret@b:1"},
    "PYOCO_NATS_USER": {"PYOCO_NATS_USER": "me", "PYOCO_NATS_PASSWORD": "s3cret"},
    "PYOCO_NATS_CREDS_FILE": {"PYOCO_NATS_CREDS_FILE": "/creds"},
    "PYOCO_NATS_NKEY_SEED_FILE": {"PYOCO_NATS_NKEY_SEED_FILE": "/seed"},
}


@pytest.mark.parametrize(("one", "other"), [*combinations(LOGINS, 2)])
def test_two_logins_are_refused_with_both_names(one: str, other: str) -> None:
    """D46"""
    (problem,) = problems_of({**LOGINS[one], **LOGINS[other]})
    assert problem == f"{one} and {other} are set; keep one login"


@pytest.mark.parametrize("login", LOGINS)
def test_one_login_is_accepted(login: str) -> None:
    assert "s3cret" not in repr(NatsBackendConfig.from_env(LOGINS[login]))


@pytest.mark.parametrize(
    ("given", "needed"),
    [
        ("PYOCO_NATS_USER='x'", "PYOCO_NATS_PASSWORD"),
        ("PYOCO_NATS_PASSWORD=***", "PYOCO_NATS_USER"),
        ("PYOCO_NATS_TLS_CERT_FILE='x'", "PYOCO_NATS_TLS_KEY_FILE"),
        ("PYOCO_NATS_TLS_KEY_FILE='x'", "PYOCO_NATS_TLS_CERT_FILE"),
    ],
)
def test_half_of_a_pair_is_refused_with_the_name_of_the_other(given: str, needed: str) -> None:
    """D46"""
    (problem,) = problems_of({given.partition("=")[0]: "x"})
    assert problem == f"{given}: requires {needed}"


def test_a_nats_of_our_own_has_no_login_and_no_tls() -> None:
    config = NatsBackendConfig.from_env({**LOGINS["PYOCO_NATS_USER"], "PYOCO_NATS_TLS_FIRST": "1"})
    own = config.with_own_nats("nats://127.0.0.1:1")
    assert own == NatsBackendConfig(nats_url="nats://127.0.0.1:1")


def test_every_variable_of_the_contract_has_a_field() -> None:
    assert set(DEFAULTS) <= {env_name(field.name) for field in fields(NatsBackendConfig)}
