"""Settings, read once from the environment.

`NatsBackendConfig` has one field per environment variable: the field name in capitals after `PYOCO_`. An
invalid value stops the start with an error that names its key and value. A secret may also be in a file that
`<NAME>_FILE` names.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_type_hints
from urllib.parse import urlsplit

import msgspec
from dotenv import dotenv_values
from msgspec import Meta

from pyoco_server.environment import KEY_BYTES, is_loopback, keys_in, secret_variable
from pyoco_server.errors import ConfigError
from pyoco_server.setting_types import (
    ApiPrefix,
    Bytes,
    Count,
    Days,
    EnvNames,
    HeaderName,
    Host,
    Hosts,
    Modules,
    Name,
    PortOrNone,
    Seconds,
    SecondsOrNever,
    Subject,
    Tags,
)

ENV_PREFIX = "PYOCO_"
EVENTS_ENV_PREFIX = "AX_"
"""Prefix of the workflow event settings, whose names come from an earlier system."""


def _secret() -> Any:
    """A setting that is never shown, and that may be in a file."""
    return field(default="", repr=False, metadata={"secret": True})


@dataclass(frozen=True, kw_only=True)
class NatsBackendConfig:
    """Every setting of the gateway and the worker, with the defaults of the contract."""

    # NATS and the work queue
    nats_url: Annotated[str, Meta(min_length=1)] = field(default="nats://127.0.0.1:4222", repr=False)
    """May contain a password, therefore it is not in the repr."""
    nats_user: str = ""
    nats_password: str = _secret()
    nats_creds_file: str = ""
    nats_nkey_seed_file: str = ""
    nats_tls_ca_file: str = ""
    nats_tls_cert_file: str = ""
    nats_tls_key_file: str = ""
    nats_tls_first: bool = False
    """TLS from the first byte, for servers that expect it."""
    work_subject_prefix: Subject = "pyoco.work"
    work_stream: Name = "PYOCO_WORK"
    requests_subject_prefix: Subject = "pyoco.requests"
    default_tag: Name = "default"
    queue_tags: Tags = ""
    """Tags whose consumers the gateway creates at startup, for workers without permission to do so."""
    runs_kv_bucket: Name = "pyoco_runs"
    workers_kv_bucket: Name = "pyoco_workers"
    flows_kv_bucket: Name = "pyoco_flows"
    strict_flows: bool = False
    queues_kv_bucket: Name = "pyoco_queues"
    jetstream_api_prefix: ApiPrefix = "$JS.API"
    """Subject prefix of the JetStream API; differs if the streams are in another account."""
    jetstream_replicas: Annotated[int, Meta(ge=1, le=5)] = 1
    jetstream_timeout_sec: Seconds = 2.0
    """How long to wait for a reply of NATS."""

    # Lists, watchers and history
    read_model_path: str = ""
    """File for the run index, so that a restart need not read all runs again; `:memory:`: none.

    Empty: in the data directory of `pyoco-server up`; elsewhere in memory.
    """
    max_watchers: Count = 1000
    runs_retention_sec: SecondsOrNever = 2_592_000.0
    """Retention of ended runs; 0: forever."""
    executions_retention_sec: SecondsOrNever = 7_776_000.0
    ticks_retention_sec: SecondsOrNever = 7_776_000.0
    idempotency_kv_bucket: Name = "pyoco_idempotency"
    idempotency_ttl_sec: Seconds = 86_400.0

    # HTTP auth
    http_auth_mode: Literal["none", "api_key"] = "none"
    http_api_key_header: HeaderName = "X-API-Key"
    auth_kv_bucket: Name = "pyoco_auth"
    auth_pepper: str = _secret()
    trusted_proxies: str = ""
    allowed_hosts: Hosts = ""
    """Accepted host names, comma separated; empty: all."""

    # Secrets and variables
    secrets_key: str = _secret()
    """Keys of 32 bytes as base64url, comma separated: the first seals secrets, all open them."""
    secrets_kv_bucket: Name = "pyoco_secrets"

    # Heartbeats and cancel
    run_heartbeat_interval_sec: Seconds = 1.0
    worker_heartbeat_interval_sec: Seconds = 5.0
    workers_kv_ttl_sec: SecondsOrNever = 15.0
    worker_disconnect_timeout_sec: Seconds = 20.0
    worker_http_port: PortOrNone = 0
    worker_http_host: Host = "127.0.0.1"
    cancel_grace_period_sec: SecondsOrNever = 30.0

    # Consumers
    consumer_ack_wait_sec: Seconds = 30.0
    consumer_max_deliver: Count = 20
    consumer_max_ack_pending: Count = 200
    ack_progress_interval_sec: Seconds = 10.0

    # Dead letters
    dlq_stream: Name = "PYOCO_DLQ"
    dlq_subject_prefix: Subject = "pyoco.dlq"
    dlq_publish_execution_error: bool = True
    dlq_max_age_sec: SecondsOrNever = 604_800.0
    dlq_max_msgs: Count = 100_000
    dlq_max_bytes: Bytes = 536_870_912
    dead_letters_kv_bucket: Name = "pyoco_dead_letters"

    # Max-deliver advisories of the NATS server, and its timers
    advisories_stream: Name = "PYOCO_ADVISORIES"
    bulk_kv_bucket: Name = "pyoco_bulk"
    bulk_items_kv_bucket: Name = "pyoco_bulk_items"
    stats_kv_bucket: Name = "pyoco_stats"
    alerts_kv_bucket: Name = "pyoco_alerts"
    deliveries_kv_bucket: Name = "pyoco_deliveries"
    alerts_allow_private: bool = False
    timers_stream: Name = "PYOCO_TIMERS"
    timers_subject_prefix: Subject = "pyoco.timers"

    # Run logs
    logs_stream: Name = "PYOCO_LOGS"
    logs_subject_prefix: Subject = "pyoco.logs"
    logs_max_age_sec: SecondsOrNever = 604_800.0
    logs_max_bytes: Bytes = 1_073_741_824

    # Sizes
    max_run_snapshot_bytes: Annotated[int, Meta(ge=1024)] = 262_144
    workflow_yaml_max_bytes: Bytes = 262_144
    values_object_store_bucket: Name = "pyoco_values"
    value_max_bytes: Annotated[int, Meta(ge=65_536)] = 67_108_864
    values_sweep_sec: Seconds = 300.0
    artifacts_max_bytes_per_run: Bytes = 1_073_741_824
    artifacts_max_bytes_per_tenant: Bytes = 107_374_182_400

    # Modules (empty: all) and environment variables (empty: none) of a worker that a flow.yaml may use
    worker_allowed_modules: Modules = ""
    worker_allowed_env: EnvNames = ""

    # Wheels
    wheel_object_store_bucket: Name = "pyoco_wheels"
    wheel_max_bytes: Bytes = 536_870_912
    wheel_sync_enabled: bool = False
    wheel_sync_dir: str = ".pyoco/wheels"
    wheel_sync_interval_sec: Seconds = 10.0
    wheel_install_timeout_sec: Seconds = 180.0
    wheel_history_kv_bucket: Name = "pyoco_wheel_history"
    wheel_history_ttl_sec: SecondsOrNever = 7_776_000.0

    # Executions
    executions_stream: Name = "PYOCO_EXECUTIONS"
    executions_subject_prefix: Subject = "pyoco.exec"
    executions_kv_bucket: Name = "pyoco_executions"
    leases_kv_bucket: Name = "pyoco_leases"
    graphs_kv_bucket: Name = "pyoco_graphs"
    schedules_kv_bucket: Name = "pyoco_schedules"
    ticks_kv_bucket: Name = "pyoco_ticks"
    ticks_max_bytes: Bytes = 1_073_741_824
    limits_kv_bucket: Name = "pyoco_limits"
    limit_holders_kv_bucket: Name = "pyoco_limit_holders"
    timezone: str = ""

    # Workflow events: storage
    workflows_kv_bucket: Name = "pyoco_workflows"
    workflow_receipts_kv_bucket: Name = "pyoco_workflow_receipts"
    workflow_retry_kv_bucket: Name = "pyoco_workflow_retry_jobs"
    workflow_resumes_kv_bucket: Name = "pyoco_workflow_resumes"
    audit_stream: Name = "PYOCO_AUDIT"
    audit_subject_prefix: Subject = "pyoco.audit"
    audit_max_age_sec: SecondsOrNever = 7_776_000.0
    audit_max_bytes: Bytes = 2_147_483_648

    # Workflow events
    workflow_event_token: str = _secret()
    workflow_event_tenant: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,64}$")] = "default"
    workflow_event_strict_keys: bool = False
    workflow_event_max_receipts: Count = 1000
    workflow_event_receipt_ttl_days: Days = 90
    workflow_event_resume_ttl_days: Days = 7
    workflow_event_max_resumes: Count = 1000
    workflow_event_import_dir: str = "artifacts/mfcloud-expense-receipt-reconcile/_workflow_events"
    """Directory with the files of an earlier workflow server, imported at the first start; empty: none."""
    workflow_event_retry_max_attempts: Count = 3
    workflow_event_retry_base_delay_seconds: Seconds = 30.0
    workflow_event_retry_terminal_ttl_days: Days = 30
    workflow_event_retry_max_jobs: Count = 2000
    workflow_event_retry_worker_enabled: bool = True
    workflow_event_retry_worker_poll_seconds: Seconds = 30.0
    google_chat_webhook_url: str = _secret()
    google_chat_base_url: str = ""
    audit_log_path: str = "reports/audit_log.jsonl"

    # Dashboard and .env
    dashboard_lang: Literal["auto", "ja", "en"] = "auto"
    load_dotenv: bool = True
    env_file: str = ".env"

    # Logs
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"] = "INFO"
    log_format: Literal["json", "text"] = "json"
    log_utc: bool = True
    log_include_traceback: bool = True

    def __post_init__(self) -> None:
        problems = _bad_fields(self) or _contradictions(self)
        if problems:
            raise ConfigError(problems)

    @property
    def allowed_modules(self) -> tuple[str, ...]:
        """`worker_allowed_modules` as names; empty when every module is allowed."""
        return tuple(self.worker_allowed_modules.replace(",", " ").split())

    @property
    def allowed_env(self) -> tuple[str, ...]:
        """`worker_allowed_env` as names."""
        return tuple(self.worker_allowed_env.replace(",", " ").split())

    @property
    def hosts_allowed(self) -> frozenset[str]:
        """`allowed_hosts` as a set; empty when every name is accepted."""
        return frozenset(self.allowed_hosts.lower().replace(",", " ").split())

    @property
    def tags_of_queues(self) -> tuple[str, ...]:
        """`queue_tags` as names."""
        return tuple(self.queue_tags.replace(",", " ").split())

    @property
    def secrets_keys(self) -> tuple[bytes, ...]:
        """`secrets_key` as bytes."""
        return keys_in(self.secrets_key) or ()

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None, **overrides: Any) -> Self:
        """The settings of this environment; `overrides` (e.g. command-line options) take precedence.

        An override `<secret>_file` names the file of a secret.
        """
        given = {name: value for name, value in overrides.items() if value is not None}
        forms = _forms_of_secrets()
        chosen = {forms[name]: str(value) for name, value in given.items() if name in forms}
        values = _parse(cls, _merged(texts_of(os.environ if environ is None else environ), chosen))
        names = {setting.name for setting in fields(cls)}
        return cls(**{**values, **{k: v for k, v in given.items() if k in names or k not in forms}})

    def with_own_nats(self, url: str) -> Self:
        """For a NATS that this program starts: on loopback, without login and TLS."""
        return replace(self, nats_url=url, **{name: getattr(NatsBackendConfig, name) for name in NATS_ACCESS})


def settings_named(prefix: str) -> dict[str, Any]:
    """The settings with this prefix that are set, by field. Raises ConfigError."""
    return _parse(NatsBackendConfig, {k: v for k, v in texts_of(os.environ).items() if k.startswith(prefix)})


def is_set(field_name: str, environ: Mapping[str, str] | None = None) -> bool:
    """Whether the environment or the .env file sets this setting."""
    return bool(texts_of(os.environ if environ is None else environ).get(env_name(field_name), "").strip())


def setting_names() -> list[str]:
    """As environment variables, secrets also as `<NAME>_FILE`."""
    return [*(env_name(setting.name) for setting in fields(NatsBackendConfig)), *_forms_of_secrets().values()]


def texts_of(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment and, beneath it, the .env file."""
    path = env_file(environ)
    found = {} if path is None else dotenv_values(path)
    return _merged({key: text for key, text in found.items() if text is not None}, environ)


def _merged(lower: Mapping[str, str], higher: Mapping[str, str]) -> dict[str, str]:
    """`higher` takes precedence: a secret that it sets in one form replaces both forms of it in `lower`."""
    replaced = {key.removesuffix("_FILE") for key in _forms_of_secrets().values() if higher.get(key)}
    kept = {key: text for key, text in lower.items() if key.removesuffix("_FILE") not in replaced}
    return {**kept, **higher}


def env_file(environ: Mapping[str, str]) -> Path | None:
    """The .env file in use; None if missing or disabled."""
    keys = [key for key in ("PYOCO_LOAD_DOTENV", "PYOCO_ENV_FILE") if key in environ]
    switches = _parse(NatsBackendConfig, {key: environ[key] for key in keys})
    path = Path(switches.get("env_file", ".env"))
    return path if switches.get("load_dotenv", True) and path.is_file() else None


_EVENTS_FIELDS = ("workflow_event_", "google_chat_", "audit_log_")
_EMPTY_COUNTS = frozenset({"audit_log_path", "workflow_event_import_dir"})
"""Settings that an empty value disables."""


def env_name(field_name: str) -> str:
    prefix = EVENTS_ENV_PREFIX if field_name.startswith(_EVENTS_FIELDS) else ENV_PREFIX
    return prefix + field_name.upper()


NATS_LOGINS = ("nats_user", "nats_creds_file", "nats_nkey_seed_file")
"""Who logs in; more settings complete it."""
NATS_ACCESS = tuple(s.name for s in fields(NatsBackendConfig) if re.match("nats_(?!url)", s.name))
"""Login and TLS."""


@cache
def _forms_of_secrets() -> dict[str, str]:
    """The variables of secrets: `auth_pepper` is PYOCO_AUTH_PEPPER, `auth_pepper_file` is that with _FILE."""
    names = [setting.name for setting in fields(NatsBackendConfig) if "secret" in setting.metadata]
    forms = {name: env_name(name) for name in names}
    return {**forms, **{f"{name}_file": f"{key}_FILE" for name, key in forms.items()}}


_SWITCHES = {"yes": "true", "on": "true", "no": "false", "off": "false"}


def _parse(cls: type, environ: Mapping[str, str]) -> dict[str, Any]:
    """Field values from environment texts."""
    hints = get_type_hints(cls, include_extras=True)
    values: dict[str, Any] = {}
    problems: list[str] = []
    for setting in fields(cls):
        try:
            text = _text(setting, environ)
            if text is not None:
                values[setting.name] = _value(setting, text, hints[setting.name])
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems)
    return values


def _text(setting: "Field[Any]", environ: Mapping[str, str]) -> str | None:
    """None: not set. An empty text counts as that, except for `_EMPTY_COUNTS`."""
    key = env_name(setting.name)
    if "secret" in setting.metadata:
        return secret_variable(key, environ)
    text = environ.get(key, "").strip()
    return text if text or (setting.name in _EMPTY_COUNTS and key in environ) else None


def _value(setting: "Field[Any]", text: str, hint: Any) -> Any:
    wanted = _SWITCHES.get(text.lower(), text) if hint is bool else text
    if setting.name == "log_level":
        wanted = text.upper()
    try:
        return msgspec.convert(wanted, hint, strict=False)
    except msgspec.ValidationError as error:
        reason = "Expected 1, 0, true, false, yes, no, on or off" if hint is bool else error
        raise ConfigError([_problem(setting, text, reason)]) from error


def _bad_fields(config: NatsBackendConfig) -> list[str]:
    hints = get_type_hints(type(config), include_extras=True)
    problems = []
    for setting in fields(config):
        value = getattr(config, setting.name)
        try:
            msgspec.convert(value, hints[setting.name])
        except msgspec.ValidationError as error:
            problems.append(_problem(setting, value, error))
    return problems


def _contradictions(config: NatsBackendConfig) -> list[str]:
    """Values that are valid alone but conflict with each other."""
    problems = _access_problems(config)
    if keys_in(config.secrets_key) is None:
        problems.append(
            f"{env_name('secrets_key')}=***: each key must be base64url of {KEY_BYTES} bytes; "
            "`pyoco-server-admin secrets new-key` makes one"
        )
    if config.ack_progress_interval_sec >= config.consumer_ack_wait_sec:
        problems.append(
            f"PYOCO_ACK_PROGRESS_INTERVAL_SEC={config.ack_progress_interval_sec}: must be less than "
            f"PYOCO_CONSUMER_ACK_WAIT_SEC={config.consumer_ack_wait_sec}, "
            "or every long run is delivered twice"
        )
    work, dlq = f"{config.work_subject_prefix}.", f"{config.dlq_subject_prefix}."
    if work.startswith(dlq) or dlq.startswith(work):
        problems.append(
            f"PYOCO_DLQ_SUBJECT_PREFIX={config.dlq_subject_prefix!r}: must not overlap with "
            f"PYOCO_WORK_SUBJECT_PREFIX={config.work_subject_prefix!r}"
        )
    if config.google_chat_base_url and not _is_local_server(config.google_chat_base_url):
        problems.append(
            f"AX_GOOGLE_CHAT_BASE_URL={config.google_chat_base_url!r}: for tests only; must be an http URL "
            "of this machine (127.0.0.1, ::1 or localhost)"
        )
    return problems


USERINFO = re.compile(r"(^|//|,\s*)[^/,]*@")
"""User and password in a NATS URL."""


def _access_problems(config: NatsBackendConfig) -> list[str]:
    """One way to log in, and every part of it."""
    used = ["the user in PYOCO_NATS_URL"] if USERINFO.search(config.nats_url) else []
    used += [env_name(way) for way in NATS_LOGINS if getattr(config, way)]
    problems = [f"{' and '.join(used)} are set; keep one login"] if len(used) > 1 else []
    for pair in (("nats_user", "nats_password"), ("nats_tls_cert_file", "nats_tls_key_file")):
        for name, other in (pair, pair[::-1]):
            if getattr(config, name) and not getattr(config, other):
                setting = type(config).__dataclass_fields__[name]
                problems.append(_problem(setting, getattr(config, name), f"requires {env_name(other)}"))
    return problems


def _is_local_server(url: str) -> bool:
    try:
        parts = urlsplit(url)
        is_plain = parts.scheme == "http" and not parts.username and parts.port != 0
    except ValueError:
        return False
    return is_plain and is_loopback(parts.hostname or "") and not parts.path.strip("/") and not parts.query


def _problem(setting: "Field[Any]", value: object, problem: object) -> str:
    shown = "***" if "secret" in setting.metadata else repr(value)
    return f"{env_name(setting.name)}={shown}: {problem}"
