"""What is in deploy/ fits the product: settings, commands, ports, routes, metrics."""

import asyncio
import json
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate
import promql_parser
import pytest
import yaml
from check_jsonschema.builtin_schemas import get_builtin_schema
from jsonschema.validators import validator_for

from hatch_build import PAGE
from pyoco_server.config import NatsBackendConfig, setting_names
from pyoco_server.domain.runs.model import RunStatus
from pyoco_server.http_api import create_app
from support.tables import every_row
from tools.reference import ROOT, commands
from tools.reference.metrics import Family, families

DEPLOY = ROOT / "deploy"
KUBERNETES = "1.32"
KEDA = "kubernetes/keda.yaml"
"""Of a resource type that a cluster has only with KEDA."""
ENVIRONMENT_OF_COMMANDS = {"PYOCO_HTTP_HOST", "PYOCO_HTTP_PORT"}


@cache
def yaml_of(path: str) -> list[Any]:
    return list(yaml.safe_load_all((DEPLOY / path).read_text()))


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    (document,) = yaml_of("docker-compose.yml")
    services: dict[str, Any] = document["services"]
    return services


@cache
def manifests() -> dict[str, Any]:
    pages = [page for file in sorted((DEPLOY / "kubernetes").glob("*.yaml")) for page in yaml_of(str(file))]
    return {f"{page['kind']}/{page['metadata']['name']}": page for page in pages}


@cache
def pods() -> dict[str, Any]:
    """The specification of each kind of pod."""
    found = {name: page["spec"].get("template") for name, page in manifests().items() if "spec" in page}
    return {name: template["spec"] for name, template in found.items() if template}


def unit(name: str) -> dict[str, list[str]]:
    """The assignments of a systemd unit."""
    lines = (DEPLOY / "systemd" / name).read_text().splitlines()
    found: dict[str, list[str]] = {}
    for key, _, value in (line.partition("=") for line in lines if re.match(r"[A-Z]\w+=", line)):
        found.setdefault(key, []).append(value)
    return found


def env_file(path: str) -> dict[str, str]:
    lines = (DEPLOY / path).read_text().splitlines()
    return dict(shlex.split(line)[0].split("=", 1) for line in lines if line and not line.startswith("#"))


@cache
def environments() -> dict[str, dict[str, str]]:
    """What each program is told by its environment."""
    (document,) = yaml_of("docker-compose.yml")
    (kustomization,) = yaml_of("kustomization.yaml")
    (settings,) = (g for g in kustomization["configMapGenerator"] if g["name"] == "pyoco-settings")
    shared = dict(literal.split("=", 1) for literal in settings["literals"])
    found = {
        f"compose {name}": {key: str(value) for key, value in service.get("environment", {}).items()}
        for name, service in document["services"].items()
    }
    for name, pod in pods().items():
        variables = {v["name"]: v.get("value", "x") for v in pod["containers"][0]["env"]}
        found[name] = {**(shared if "StatefulSet" not in name else {}), **variables}
    return {
        **found,
        "systemd pyoco": env_file("systemd/pyoco.env"),
        "systemd nats": env_file("systemd/nats.env"),
    }


@cache
def command_lines() -> dict[str, list[str]]:
    (document,) = yaml_of("docker-compose.yml")
    found = {f"compose {name}": s["command"] for name, s in document["services"].items() if "command" in s}
    found |= {name: pod["containers"][0]["command"] for name, pod in pods().items()}
    options = env_file("systemd/pyoco.env")["WORKER_OPTIONS"]
    for name in ("pyoco-nats.service", "pyoco-gateway.service", "pyoco-worker@.service"):
        (line,) = unit(name)["ExecStart"]
        found[name] = shlex.split(line.replace("/opt/pyoco/bin/", "").replace("$WORKER_OPTIONS", options))
    (cmd,) = re.findall(r"^CMD (.+)$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    return {**found, "Dockerfile": json.loads(cmd)}


# Forms


def test_the_compose_file_is_one() -> None:
    (document,) = yaml_of("docker-compose.yml")
    schema = get_builtin_schema("vendor.compose-spec")
    assert [error.message for error in validator_for(schema)(schema).iter_errors(document)] == []


@every_row("name", [name for name in manifests() if name != "ScaledObject/pyoco-worker"])
def test_a_manifest_is_one(name: str) -> None:
    kubernetes_validate.validate(manifests()[name], KUBERNETES, strict=True)


def test_keda_scales_the_workers_by_the_queue_of_a_tag_that_they_have(
    known_series: dict[str, Family],
) -> None:
    spec = manifests()["ScaledObject/pyoco-worker"]["spec"]
    assert set(spec) <= {
        "scaleTargetRef", "minReplicaCount", "maxReplicaCount", "pollingInterval", "cooldownPeriod",
        "triggers",
    }  # fmt: skip
    assert f"Deployment/{spec['scaleTargetRef']['name']}" in manifests()
    (trigger,) = spec["triggers"]
    assert trigger["type"] == "prometheus"
    assert {type(value) for value in trigger["metadata"].values()} == {str}, "KEDA takes texts only"
    command = command_lines()["Deployment/pyoco-worker"]
    tags = set(re.findall(r'tag="([^"]+)"', trigger["metadata"]["query"]))
    assert tags <= set(command[command.index("--tags") + 1].split(","))
    assert set(re.findall(r"pyoco_\w+", trigger["metadata"]["query"])) <= set(known_series)
    promql_parser.parse(trigger["metadata"]["query"])
    assert trigger["metadata"]["threshold"] == command[command.index("--concurrency") + 1]


def test_the_kustomization_names_every_manifest() -> None:
    (kustomization,) = yaml_of("kustomization.yaml")
    files = {f"kubernetes/{path.name}" for path in (DEPLOY / "kubernetes").glob("*.yaml")} - {KEDA}
    assert set(kustomization["resources"]) == files
    named = [f for generator in kustomization["configMapGenerator"] for f in generator.get("files", [])]
    assert all((DEPLOY / file).is_file() for file in named)


def test_what_the_image_is_built_from_is_there() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    lines = re.findall(r"^COPY (?!--)(.+) \S+$", text, re.MULTILINE)
    copied = [word for line in lines for word in line.split()]
    assert copied
    assert [name for name in copied if not (ROOT / name).exists()] == []
    let_in = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    assert {f"!{name}" for name in copied} == {line for line in let_in if line.startswith("!")}
    assert re.search(r"^USER 10001$", text, re.MULTILINE)


def test_the_image_has_the_dashboard_from_a_stage_of_its_own() -> None:
    """D40"""
    text = (DEPLOY / "Dockerfile").read_text()
    page = PAGE.parent
    assert f"COPY --from=dashboard /source/{page} {page}" in text
    assert text.index("AS dashboard") < text.index("run build") < text.index("AS build")
    left_out = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    assert {str(page), "web/node_modules"} <= set(left_out)  # nothing that was built elsewhere


# Settings


@pytest.mark.parametrize("name", environments())
def test_settings_exist_and_can_be_used(name: str, tmp_path: Path) -> None:
    environ = {key: value for key, value in environments()[name].items() if key.startswith("PYOCO_")}
    assert set(environ) - {*setting_names(), *ENVIRONMENT_OF_COMMANDS} == set()
    mounted = tmp_path / "secret"
    mounted.write_text("s3cret\n")
    files = {key: str(mounted) for key, value in environ.items() if value.startswith("/run/secrets/")}
    NatsBackendConfig.from_env({"PYOCO_LOAD_DOTENV": "false", **environ, **files})


def test_secrets_are_mounted_where_they_are_read(compose: dict[str, Any]) -> None:
    (document,) = yaml_of("docker-compose.yml")
    for name, service in compose.items():
        read = [v for v in service.get("environment", {}).values() if str(v).startswith("/run/secrets/")]
        assert read == [f"/run/secrets/{secret}" for secret in service.get("secrets", [])], name
        assert set(service.get("secrets", [])) <= set(document["secrets"])
    for name in ("Deployment/pyoco-gateway", "Deployment/pyoco-worker"):
        (container,) = pods()[name]["containers"]
        (mount,) = [m for m in container["volumeMounts"] if m["mountPath"].startswith("/run/secrets")]
        assert environments()[name]["PYOCO_NATS_PASSWORD_FILE"] == f"{mount['mountPath']}/NATS_PASSWORD"
        assert mount["name"] in [volume["name"] for volume in pods()[name]["volumes"] if "secret" in volume]


@pytest.mark.parametrize("name", [name for name, e in environments().items() if "NATS_ROUTES" in e])
def test_what_the_configuration_of_nats_asks_for_is_given(name: str) -> None:
    asked = set(re.findall(r"\$(NATS_\w+)", (DEPLOY / "nats" / "nats-server.conf").read_text()))
    assert {key for key in environments()[name] if key.startswith("NATS_")} == asked


def test_everybody_asks_for_three_replicas() -> None:
    found = [e.get("PYOCO_JETSTREAM_REPLICAS") for e in environments().values() if "PYOCO_NATS_URL" in e]
    assert set(found) == {"3"}


# Commands


@every_row("name", command_lines())
def test_a_command_and_its_options_exist(name: str) -> None:
    program, *arguments = command_lines()[name]
    if program == "nats-server":
        assert arguments[0] == "-c"
        return
    app = commands.PROGRAMS[program]
    app.parse_args(arguments, exit_on_error=False, print_error=False)  # raises for what it does not know


@pytest.mark.parametrize(
    ("who", "patience"),
    [
        ("compose worker", yaml_of("docker-compose.yml")[0]["services"]["worker"]["stop_grace_period"]),
        (
            "compose worker-gpu",
            yaml_of("docker-compose.yml")[0]["services"]["worker-gpu"]["stop_grace_period"],
        ),
        ("Deployment/pyoco-worker", pods()["Deployment/pyoco-worker"]["terminationGracePeriodSeconds"]),
        ("pyoco-worker@.service", unit("pyoco-worker@.service")["TimeoutStopSec"][0]),
    ],
)
def test_a_worker_may_drain_before_it_is_killed(who: str, patience: Any) -> None:
    line = command_lines()[who]
    assert int(str(patience).removesuffix("s")) > int(line[line.index("--drain-timeout") + 1]) + 10


def test_systemd_stops_the_worker_and_not_its_runs() -> None:
    assert unit("pyoco-worker@.service")["KillMode"] == ["mixed"]


# Ports and routes


def ports_in(text: str) -> set[str]:
    return set(re.findall(r"(?://|@)[\w.-]+:(\d+)", text))


@pytest.mark.parametrize("name", [name for name, e in environments().items() if "PYOCO_NATS_URL" in e])
def test_gateways_and_workers_find_nats(name: str) -> None:
    assert ports_in(environments()[name]["PYOCO_NATS_URL"]) == {"4222"}


@pytest.mark.parametrize("name", [name for name, e in environments().items() if "NATS_ROUTES" in e])
def test_the_nodes_find_each_other(name: str) -> None:
    environ = environments()[name]
    assert environ["NATS_PORT"] == "4222"
    assert ports_in(environ["NATS_ROUTES"]) == {environ["NATS_ROUTE_PORT"]}
    assert len(re.findall(r"nats://", environ["NATS_ROUTES"])) == 3


def test_the_proxy_and_prometheus_find_the_gateways(compose: dict[str, Any]) -> None:
    named = {name: service for name, service in compose.items() if name.startswith("gateway")}
    gateways = {f"{name}:{service['environment']['PYOCO_HTTP_PORT']}" for name, service in named.items()}
    assert set(compose["proxy"]["environment"]["GATEWAYS"].split()) == gateways
    (prometheus,) = yaml_of("monitoring/prometheus.yml")
    (scrape,) = prometheus["scrape_configs"]
    assert set(scrape["static_configs"][0]["targets"]) == gateways
    assert [(DEPLOY / "monitoring" / file).is_file() for file in prometheus["rule_files"]] == [True]


def test_the_ports_of_kubernetes_agree() -> None:
    for name, pod in pods().items():
        (container,) = pod["containers"]
        ports = {port["name"]: str(port["containerPort"]) for port in container.get("ports", [])}
        environ = environments()[name]
        assert ports == {port: environ[SETTING_OF_PORT[port]] for port in ports}
        assert {probe["httpGet"]["port"] for probe in probes(container)} <= set(ports)
    for service in ("pyoco-gateway", "pyoco-nats"):
        manifest = manifests()[f"Service/{service}"]
        (container,) = next(p for n, p in pods().items() if n.endswith(f"/{service}"))["containers"]
        assert {p["targetPort"] for p in manifest["spec"]["ports"]} <= {p["name"] for p in container["ports"]}


SETTING_OF_PORT = {
    "http": "PYOCO_HTTP_PORT",
    "metrics": "PYOCO_WORKER_HTTP_PORT",
    "nats": "NATS_PORT",
    "routes": "NATS_ROUTE_PORT",
    "monitor": "NATS_HTTP_PORT",
}


def probes(container: dict[str, Any]) -> list[Any]:
    return [
        container[kind] for kind in ("startupProbe", "readinessProbe", "livenessProbe") if kind in container
    ]


def test_gateways_are_asked_on_routes_that_exist(compose: dict[str, Any]) -> None:
    (container,) = pods()["Deployment/pyoco-gateway"]["containers"]
    caddy = (DEPLOY / "proxy" / "Caddyfile").read_text()
    asked = {probe["httpGet"]["path"] for probe in probes(container)}
    asked |= set(re.findall(r"health_uri (\S+)", caddy))
    asked |= set(re.findall(r":8000(/\w+)", str(compose["gateway-1"]["healthcheck"]["test"])))
    assert asked == {"/health", "/ready"}
    assert asked <= set(create_app(NatsBackendConfig()).openapi()["paths"])


# Metrics


@pytest.fixture(scope="module")
def known_series() -> dict[str, Family]:
    return {series: family for family in asyncio.run(families()) for series in family.series}


def expressions() -> Iterator[tuple[str, str]]:
    (rules,) = yaml_of("monitoring/prometheus-rules.yml")
    for group in rules["groups"]:
        for rule in group["rules"]:
            yield rule["alert"], rule["expr"]
    dashboard = json.loads((DEPLOY / "monitoring" / "grafana-dashboard.json").read_text())
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            yield f"{panel['title']} {target['refId']}", target["expr"].replace("$__rate_interval", "5m")


@every_row(("name", "expression"), [*expressions()])
def test_alerts_and_panels_ask_for_what_there_is(
    name: str, expression: str, known_series: dict[str, Family]
) -> None:
    promql_parser.parse(expression)
    selectors = re.findall(r"(\w+)(?:\{([^}]*)\})?(?=[\[\s)]|$)", expression)
    asked = {series: labels for series, labels in selectors if series.startswith("pyoco_")}
    assert asked or expression.count("up{")
    for series, labels in asked.items():
        assert series in known_series, f"{name} asks for {series}"
        for label, value in re.findall(r'(\w+)="([^"]*)"', labels):
            assert label in known_series[series].labels
            assert value in {*RunStatus, "5xx"}
    grouped = {label for part in re.findall(r"by \(([^)]*)\)", expression) for label in part.split(", ")}
    assert grouped <= {"instance", "le"}.union(*(known_series[series].labels for series in asked))


def test_every_alert_is_explained() -> None:
    alerts = [name for name, _ in expressions() if name.startswith("Pyoco")]
    page = (ROOT / "docs" / "how-to" / "observe.md").read_text()
    assert re.findall(r"^\| `(Pyoco\w+)`", page, re.MULTILINE) == alerts


def test_panels_do_not_overlap() -> None:
    dashboard = json.loads((DEPLOY / "monitoring" / "grafana-dashboard.json").read_text())
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not taken & cells, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
