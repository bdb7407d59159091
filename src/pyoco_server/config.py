"""Settings, read once from the environment.

`NatsBackendConfig` has one field per environment variable: the field name in capitals after `PYOCO_`. An
invalid value stops the start with an error that names its key and value.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self, get_type_hints
from urllib.parse import urlsplit

import msgspec
from dotenv import dotenv_values
from msgspec import Meta

from pyoco_server.errors import ConfigError

ENV_PREFIX = "PYOCO_"
EVENTS_ENV_PREFIX = "AX_"
"""Prefix of the workflow event settings, whose names come from an earlier system."""
COMMAND_VARIABLES = frozenset(
    {"PYOCO_SERVER_URL", "PYOCO_API_KEY", "PYOCO_HTTP_HOST", "PYOCO_HTTP_PORT", "PYOCO_DISCOVERY_MODULES"}
)
"""Variables that commands read instead of an option; the last belongs to pyoco.

Settings of the gateway and the worker are the fields below.
"""

MAX_SECONDS = 9e9
"""JetStream stores durations as nanoseconds in 64 bits, so `inf` is not possible."""
Seconds = Annotated[float, Meta(gt=0, le=MAX_SECONDS)]
SecondsOrNever = Annotated[float, Meta(ge=0, le=MAX_SECONDS)]
Count = Annotated[int, Meta(ge=1)]
Bytes = Annotated[int, Meta(ge=1)]
Subject = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$")]
"""A subject prefix: tokens without wildcards, because messages are published under it."""
ApiPrefix = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_$-]+(\.[A-Za-z0-9_$-]+)*$")]
Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]+$")]
"""A stream or bucket name: JetStream allows no dots, wildcards or spaces."""
Modules = Annotated[str, Meta(pattern=r"^\s*([A-Za-z_][\w.]*\s*(,\s*[A-Za-z_][\w.]*\s*)*)?$")]
"""Names of Python modules or packages, separated by commas."""
EnvNames = Annotated[str, Meta(pattern=r"^\s*([A-Za-z_]\w*\s*(,\s*[A-Za-z_]\w*\s*)*)?$")]
"""Names of environment variables, separated by commas."""
Tags = Annotated[str, Meta(pattern=r"^\s*([A-Za-z0-9_-]{1,64}\s*(,\s*[A-Za-z0-9_-]{1,64}\s*)*)?$")]
"""Tags, separated by commas."""
Hosts = Annotated[str, Meta(pattern=r"^[A-Za-z0-9.,:_\[\] -]*$")]
Days = Annotated[int, Meta(ge=1, le=36_500)]
HeaderName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~-]+$")]


@dataclass(frozen=True, kw_only=True)
class NatsBackendConfig:
    """Every setting of the gateway and the worker, with the defaults of the contract."""

    # NATS and the work queue
    nats_url: Annotated[str, Meta(min_length=1)] = "nats://127.0.0.1:4222"
    work_subject_prefix: Subject = "pyoco.work"
    work_stream: Name = "PYOCO_WORK"
    default_tag: Name = "default"
    queue_tags: Tags = ""
    """Tags whose consumers the gateway creates at startup, for workers without permission to do so."""
    runs_kv_bucket: Name = "pyoco_runs"
    workers_kv_bucket: Name = "pyoco_workers"
    jetstream_api_prefix: ApiPrefix = "$JS.API"
    """Subject prefix of the JetStream API; differs if the streams are in another account."""
    jetstream_replicas: Annotated[int, Meta(ge=1, le=5)] = 1

    # Lists, watchers and history
    read_model_path: str = ""
    """File for the run index, so that a restart need not read all runs again; empty: in memory."""
    max_watchers: Count = 1000
    runs_retention_sec: SecondsOrNever = 0.0
    """Retention of ended runs; 0: forever."""
    idempotency_kv_bucket: Name = "pyoco_idempotency"
    idempotency_ttl_sec: Seconds = 86_400.0

    # HTTP auth
    http_auth_mode: Literal["none", "api_key"] = "none"
    http_api_key_header: HeaderName = "X-API-Key"
    auth_kv_bucket: Name = "pyoco_auth"
    auth_pepper: str = field(default="", repr=False)  # a secret

    trusted_proxies: str = ""
    """Proxies whose X-Forwarded-For header is trusted, comma separated."""

    allowed_hosts: Hosts = ""
    """Accepted host names, comma separated; empty: all."""

    # Heartbeats and cancel
    run_heartbeat_interval_sec: Seconds = 1.0
    worker_heartbeat_interval_sec: Seconds = 5.0
    workers_kv_ttl_sec: SecondsOrNever = 15.0
    worker_disconnect_timeout_sec: Seconds = 20.0
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

    # Max-deliver advisories of the NATS server
    advisories_stream: Name = "PYOCO_ADVISORIES"

    # Run logs
    logs_stream: Name = "PYOCO_LOGS"
    logs_subject_prefix: Subject = "pyoco.logs"
    logs_max_age_sec: SecondsOrNever = 604_800.0
    logs_max_bytes: Bytes = 1_073_741_824

    # Sizes
    max_run_snapshot_bytes: Annotated[int, Meta(ge=1024)] = 262_144
    workflow_yaml_max_bytes: Bytes = 262_144

    # Modules that a flow.yaml may use on a worker (empty: all)
    worker_allowed_modules: Modules = ""
    # Environment variables of a worker that a flow.yaml may read (empty: none)
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

    # Workflow events: storage
    workflows_kv_bucket: Name = "pyoco_workflows"
    workflow_receipts_kv_bucket: Name = "pyoco_workflow_receipts"
    workflow_retry_kv_bucket: Name = "pyoco_workflow_retry_jobs"
    workflow_resumes_kv_bucket: Name = "pyoco_workflow_resumes"
    audit_stream: Name = "PYOCO_AUDIT"
    audit_subject_prefix: Subject = "pyoco.audit"
    audit_max_age_sec: SecondsOrNever = 34_560_000.0
    audit_max_bytes: Bytes = 2_147_483_648

    # Workflow events
    workflow_event_token: str = field(default="", repr=False)  # a secret
    workflow_event_tenant: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,64}$")] = "default"
    workflow_event_strict_keys: bool = False
    workflow_event_max_receipts: Count = 1000
    workflow_event_receipt_ttl_days: Days = 90
    workflow_event_resume_ttl_days: Days = 7
    """Retention of resume events whose node is not waiting yet."""
    workflow_event_max_resumes: Count = 1000
    workflow_event_import_dir: str = "artifacts/mfcloud-expense-receipt-reconcile/_workflow_events"
    """Directory with the files of an earlier workflow server, imported at the first start; empty: none."""
    workflow_event_retry_max_attempts: Count = 3
    workflow_event_retry_base_delay_seconds: Seconds = 30.0
    workflow_event_retry_terminal_ttl_days: Days = 30
    workflow_event_retry_max_jobs: Count = 2000
    workflow_event_retry_worker_enabled: bool = True
    workflow_event_retry_worker_poll_seconds: Seconds = 30.0
    google_chat_webhook_url: str = field(default="", repr=False)  # a secret
    google_chat_base_url: str = ""
    """URL of a test server in place of Google Chat; on this machine only."""
    audit_log_path: str = "reports/audit_log.jsonl"
    """File that also receives the audit records, one per line; empty: none."""

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

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None, **overrides: Any) -> Self:
        """The settings of this environment; `overrides` (e.g. command-line options) take precedence."""
        values = _parse(cls, _texts(os.environ if environ is None else environ))
        return cls(**{**values, **{k: v for k, v in overrides.items() if v is not None}})


class LogSettings(NamedTuple):
    """Log settings, available without the other settings."""

    level: str
    format: str | None
    """None: not set."""
    utc: bool
    include_traceback: bool


def log_settings(environ: Mapping[str, str] | None = None) -> LogSettings:
    """Raises ConfigError for an invalid log setting."""
    texts = _texts(os.environ if environ is None else environ)
    found = _parse(NatsBackendConfig, {k: v for k, v in texts.items() if k.startswith("PYOCO_LOG_")})
    defaults = NatsBackendConfig
    return LogSettings(
        level=found.get("log_level", defaults.log_level),
        format=found.get("log_format"),
        utc=found.get("log_utc", defaults.log_utc),
        include_traceback=found.get("log_include_traceback", defaults.log_include_traceback),
    )


_LOCALE_VARIABLES = ("LC_ALL", "LC_MESSAGES", "LANG")
"""In POSIX order: the first one set decides."""


def language(environ: Mapping[str, str] = os.environ) -> Literal["en", "ja"]:
    """The user's language: Japanese in a Japanese locale, else English."""
    decisive = next((environ[name] for name in _LOCALE_VARIABLES if environ.get(name)), "")
    return "ja" if decisive.partition("_")[0].partition(".")[0].lower() == "ja" else "en"


def is_set(field_name: str, environ: Mapping[str, str] | None = None) -> bool:
    """Whether the environment or the .env file sets this setting."""
    return bool(_texts(os.environ if environ is None else environ).get(env_name(field_name), "").strip())


def env_file(environ: Mapping[str, str] | None = None) -> Path | None:
    """The .env file in use; None if missing or disabled."""
    return _env_file(os.environ if environ is None else environ)


def setting_names() -> list[str]:
    """As environment variables."""
    return [env_name(setting.name) for setting in fields(NatsBackendConfig)]


def unknown_names(environ: Mapping[str, str] | None = None) -> list[str]:
    """Variables with our prefix that are not settings, mostly typos."""
    known = {*setting_names(), *COMMAND_VARIABLES}
    texts = _texts(os.environ if environ is None else environ)
    return sorted(name for name in texts if name.startswith(ENV_PREFIX) and name not in known)


def _texts(environ: Mapping[str, str]) -> dict[str, str]:
    return {**_dotenv(environ), **environ}


def _dotenv(environ: Mapping[str, str]) -> dict[str, str]:
    """Values of the .env file. Environment variables take precedence."""
    path = _env_file(environ)
    if path is None:
        return {}
    return {key: value for key, value in dotenv_values(path).items() if value is not None}


def _env_file(environ: Mapping[str, str]) -> Path | None:
    switches = _parse(
        NatsBackendConfig, {k: v for k, v in environ.items() if k in ("PYOCO_LOAD_DOTENV", "PYOCO_ENV_FILE")}
    )
    path = Path(switches.get("env_file", ".env"))
    return path if switches.get("load_dotenv", True) and path.is_file() else None


_EVENTS_FIELDS = ("workflow_event_", "google_chat_", "audit_log_")
_EMPTY_COUNTS = frozenset({"audit_log_path", "workflow_event_import_dir"})
"""Settings that an empty value disables."""


def env_name(field_name: str) -> str:
    prefix = EVENTS_ENV_PREFIX if field_name.startswith(_EVENTS_FIELDS) else ENV_PREFIX
    return prefix + field_name.upper()


_SWITCHES = {"yes": "true", "on": "true", "no": "false", "off": "false"}


def _parse(cls: type, environ: Mapping[str, str]) -> dict[str, Any]:
    """Field values from environment texts. An empty text counts as unset, except for `_EMPTY_COUNTS`."""
    hints = get_type_hints(cls, include_extras=True)
    values: dict[str, Any] = {}
    problems = []
    for setting in fields(cls):
        key = env_name(setting.name)
        text = environ.get(key, "").strip()
        if not text and not (setting.name in _EMPTY_COUNTS and key in environ):
            continue
        if setting.name == "log_level":
            text = text.upper()
        is_switch = hints[setting.name] is bool
        try:
            wanted = _SWITCHES.get(text.lower(), text) if is_switch else text
            values[setting.name] = msgspec.convert(wanted, hints[setting.name], strict=False)
        except msgspec.ValidationError as error:
            reason = "Expected 1, 0, true, false, yes, no, on or off" if is_switch else error
            problems.append(f"{key}={_shown(key, text)}: {reason}")
    if problems:
        raise ConfigError(problems)
    return values


def _bad_fields(config: NatsBackendConfig) -> list[str]:
    hints = get_type_hints(type(config), include_extras=True)
    problems = []
    for setting in fields(config):
        value = getattr(config, setting.name)
        try:
            msgspec.convert(value, hints[setting.name])
        except msgspec.ValidationError as error:
            problems.append(f"{env_name(setting.name)}={_shown(setting.name, value)}: {error}")
    return problems


def _contradictions(config: NatsBackendConfig) -> list[str]:
    """Values that are valid alone but conflict with each other."""
    problems = []
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
    if config.google_chat_base_url and not _is_loopback(config.google_chat_base_url):
        problems.append(
            f"AX_GOOGLE_CHAT_BASE_URL={config.google_chat_base_url!r}: for tests only; must be an http URL "
            "of this machine (127.0.0.1, ::1 or localhost)"
        )
    return problems


def _is_loopback(url: str) -> bool:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return False
    is_plain = parts.scheme == "http" and not parts.username and not parts.path.strip("/") and port != 0
    return is_plain and not parts.query and (host == "localhost" or _is_loopback_address(host))


def _is_loopback_address(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


_SECRETS = ("pepper", "event_token", "webhook_url")


def _shown(key: str, value: object) -> str:
    return "***" if any(secret in key.lower() for secret in _SECRETS) else repr(value)
