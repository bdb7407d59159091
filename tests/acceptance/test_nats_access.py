"""D46: the commands on a NATS with logins and TLS, and secrets in files."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.installation import FLOWS
from support.nats_access import Authority, GuardedNats, Operator, guarded_nats, tls_settings, user_key
from support.nats_server import free_port
from support.programs import Programs, children_of, command_of

SECRET = "s3cret-password"  # noqa: S105
USERS = f"authorization {{ user: me, password: {SECRET} }}\n"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "authority")


@pytest.fixture
def nats(tmp_path: Path, authority: Authority) -> Iterator[GuardedNats]:
    """It wants a password and a client certificate."""
    with guarded_nats(tmp_path / "guarded", USERS + tls_settings(authority, verify=True)) as server:
        yield server


def access(programs: Programs, authority: Authority, url: str) -> dict[str, str]:
    """The settings that are enough for everything."""
    cert, key = authority.issue("client")
    (programs.directory / "password").write_text(f"{SECRET}\n")
    return {
        "PYOCO_NATS_URL": url,
        "PYOCO_NATS_USER": "me",
        "PYOCO_NATS_PASSWORD_FILE": "password",
        "PYOCO_NATS_TLS_CA_FILE": str(authority.certificate),
        "PYOCO_NATS_TLS_CERT_FILE": str(cert),
        "PYOCO_NATS_TLS_KEY_FILE": str(key),
    }


def as_options(settings: dict[str, str]) -> list[str]:
    named = {key.removeprefix("PYOCO_").lower().replace("_", "-"): value for key, value in settings.items()}
    return [word for name, value in named.items() for word in (f"--{name}", value)]


def ran(programs: Programs, port: int) -> str:
    submit = (
        "pyoco-client",
        "submit",
        "--server",
        f"http://127.0.0.1:{port}",
        "--flow-name",
        "tiny",
        "--wait",
    )
    done = programs.run(*submit)
    assert done.returncode == 0, done.stderr
    status: str = json.loads(done.stdout)["status"]
    return status


def test_a_whole_installation_over_tls_with_client_certificates(
    programs: Programs, authority: Authority, nats: GuardedNats
) -> None:
    """Gateway, worker, doctor, admin, backup and restore; set by the environment."""
    programs.environ |= access(programs, authority, nats.url)
    port = free_port()
    with (
        programs.started("pyoco-server", "up", "--port", str(port)) as gateway,
        programs.started("pyoco-worker", "--flow-resolver", FLOWS, "--wheel-sync") as worker,
    ):
        gateway.says("gateway ready")
        worker.says("worker ready")
        assert ran(programs, port) == "COMPLETED"
        doctor = programs.run("pyoco-server", "doctor", "--json", "--server", f"http://127.0.0.1:{port}")
        assert doctor.returncode == 0, doctor.stdout
        assert programs.run("pyoco-server-admin", "api-key", "list").stdout == "[]\n"
        saved = programs.run("pyoco-server-admin", "backup", "--directory", "saved")
        assert json.loads(saved.stdout)["streams"]["KV_pyoco_runs"] == 1
        exists = programs.run("pyoco-server-admin", "restore", "--directory", "saved")
        assert "PYOCO_WORK" in exists.stderr
        shown = gateway.output + worker.output + doctor.stdout + saved.stdout + exists.stderr
        assert SECRET not in shown
        assert "Traceback" not in shown
    restored = programs.run("pyoco-server-admin", "restore", "--directory", "saved", "--data-dir", "own")
    assert json.loads(restored.stdout) == json.loads(saved.stdout)


def test_the_same_by_options_and_the_worker_that_is_started_has_no_secret_in_its_arguments(
    programs: Programs, authority: Authority, nats: GuardedNats
) -> None:
    options = as_options(access(programs, authority, nats.url))
    port = free_port()
    up = ("pyoco-server", "up", "--with-worker", "--flow-resolver", FLOWS, "--port", str(port), *options)
    with programs.started(*up) as stack:
        stack.says("worker ready")
        assert ran(programs, port) == "COMPLETED"
        commands = [command_of(pid) for pid in children_of(stack.pid)]
        assert any("pyoco_server.cli.worker" in command for command in commands)
        assert SECRET not in str(commands)
        doctor = programs.run("pyoco-server", "doctor", "--json", *options)
        (found,) = [check for check in json.loads(doctor.stdout)["checks"] if check["check"] == "nats"]
        assert found["level"] == "OK"
        saved = programs.run("pyoco-server-admin", *options, "backup", "--directory", "saved")
        assert saved.returncode == 0, saved.stderr
        by_hand = [word if word != "--nats-password-file" else "--nats-password" for word in options]
        by_hand[by_hand.index("--nats-password") + 1] = SECRET
        listed = programs.run("pyoco-server-admin", *by_hand, "api-key", "list")
        assert listed.returncode == 0, listed.stderr
        assert stack.ends_after(signal.SIGTERM) == 0


@pytest.mark.parametrize("login", ["creds", "nkey"])
def test_a_run_with_a_login_by_key(programs: Programs, tmp_path: Path, login: str) -> None:
    operator, key, file = Operator(), user_key(), tmp_path / "login"
    file.write_text(operator.credentials() if login == "creds" else key.seed)
    name = "PYOCO_NATS_CREDS_FILE" if login == "creds" else "PYOCO_NATS_NKEY_SEED_FILE"
    nkey = f"authorization {{ users: [ {{ nkey: {key.public} }} ] }}\n"
    port = free_port()
    with guarded_nats(tmp_path / "nats", operator.settings if login == "creds" else nkey) as nats:
        programs.environ |= {"PYOCO_NATS_URL": nats.url, name: str(file)}
        up = ("pyoco-server", "up", "--with-worker", "--flow-resolver", FLOWS, "--port", str(port))
        with programs.started(*up) as stack:
            stack.says("worker ready")
            assert ran(programs, port) == "COMPLETED"
            assert key.seed not in stack.output


# What is refused


@pytest.mark.slow
def test_what_nats_rejects_is_one_line_from_everybody(
    programs: Programs, authority: Authority, nats: GuardedNats, tmp_path: Path
) -> None:
    right = access(programs, authority, nats.url)
    (programs.directory / "wrong").write_text(f"{SECRET}-not")
    cert, key = Authority(tmp_path / "stranger").issue("client")
    wrong = {
        "check PYOCO_NATS_USER and PYOCO_NATS_PASSWORD": {"PYOCO_NATS_PASSWORD_FILE": "wrong"},
        "check PYOCO_NATS_TLS_CA_FILE": {"PYOCO_NATS_TLS_CA_FILE": str(cert)},
        "check PYOCO_NATS_TLS_CERT_FILE": {
            "PYOCO_NATS_TLS_CERT_FILE": str(cert),
            "PYOCO_NATS_TLS_KEY_FILE": str(key),
        },
    }
    for advice, change in wrong.items():
        programs.environ |= {**right, **change}
        with (
            programs.started("pyoco-server", "up", "--port", str(free_port())) as gateway,
            programs.started("pyoco-worker", "--flow-resolver", FLOWS) as worker,
        ):
            gateway.says(rf'"action": "nats.unauthorized".*{advice}(.|\n)*"pause_sec": 2.0')
            worker.says(rf"{advice}(.|\n)*\"pause_sec\": 2.0")
            assert '"err_id": "ERR-PYOCO-0003"' in gateway.output
            shown = gateway.output + worker.output
        listed = programs.run("pyoco-server-admin", "api-key", "list")
        assert listed.stderr.startswith("ERR-PYOCO-0003 ")
        assert len(listed.stderr.splitlines()) == 1
        assert advice in listed.stderr
        doctor = json.loads(programs.run("pyoco-server", "doctor", "--json").stdout)
        (found,) = [check for check in doctor["checks"] if check["check"] == "nats"]
        assert (found["level"], advice in found["fact"]) == ("FAIL", True)
        shown += listed.stderr + str(doctor)
        assert "Traceback" not in shown
        assert SECRET not in shown


MISSING = [
    "PYOCO_NATS_CREDS_FILE='missing': cannot be used (No such file or directory)",
    "PYOCO_AUTH_PEPPER_FILE='missing': cannot be read (No such file or directory)",
]
STARTS = [
    ("pyoco-server", "up"),
    ("pyoco-worker", "--flow-resolver", FLOWS),
    ("pyoco-server-admin", "api-key", "list"),
]


@pytest.mark.parametrize("command", STARTS, ids=lambda command: command[0])
def test_a_file_that_is_missing_stops_the_start_with_its_name(
    programs: Programs, command: tuple[str, ...]
) -> None:
    programs.environ["PYOCO_NATS_URL"] = f"nats://127.0.0.1:{free_port()}"
    for line in MISSING:
        done = programs.run(*command, **{line.partition("=")[0]: "missing"})
        assert done.returncode == 1
        assert f"  {line}" in done.stderr.splitlines()


def test_doctor_names_the_files_too(programs: Programs) -> None:
    for line in MISSING:
        done = programs.run("pyoco-server", "doctor", "--json", **{line.partition("=")[0]: "missing"})
        assert [line in check["fact"] for check in json.loads(done.stdout)["checks"]].count(True) == 1


def test_a_login_without_a_url_is_not_ignored(programs: Programs) -> None:
    done = programs.run("pyoco-server", "up", PYOCO_NATS_USER="me", PYOCO_NATS_PASSWORD=SECRET)
    assert done.returncode == 1
    assert "PYOCO_NATS_USER, PYOCO_NATS_PASSWORD: set for an external NATS" in done.stderr
    assert SECRET not in done.stderr


def test_the_key_of_a_client_may_be_in_a_file(programs: Programs) -> None:
    port = free_port()
    up = ("pyoco-server", "up", "--port", str(port), "--durability", "fast")
    with programs.started(*up, PYOCO_HTTP_AUTH_MODE="api_key") as server:
        server.says("gateway ready")
        made = programs.run("pyoco-server-admin", "api-key", "create", "--tenant", "acme")
        (programs.directory / "key").write_text(json.loads(made.stdout)["api_key"] + "\n")
        listed = programs.run("pyoco-client", "list", PYOCO_API_KEY_FILE="key")
        assert (listed.returncode, listed.stdout) == (0, "[]\n"), listed.stderr
        refused = programs.run("pyoco-client", "list", PYOCO_API_KEY_FILE="key", PYOCO_API_KEY="other")
        assert "PYOCO_API_KEY and PYOCO_API_KEY_FILE are both set" in refused.stderr
