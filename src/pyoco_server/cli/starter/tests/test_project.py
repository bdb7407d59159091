"""Run with `python -m pytest`; needs no server."""

import importlib
import json
from pathlib import Path
from typing import Any

import yaml
from pyoco.core.engine import Engine
from report import report
from sales import extract

ROOT = Path(__file__).parents[1]
FLOWS = {"extract": extract, "report": report}


def results(flow: Any, **params: Any) -> dict[str, Any]:
    """The result of each task."""
    return Engine().run(flow, params).results


def test_extract_keeps_the_valid_sales():
    rows = results(extract, ym="2026-03")["valid_sales"]
    assert [row["amount"] for row in rows] == [1200, 1800]
    assert {row["ym"] for row in rows} == {"2026-03"}


def test_report_sums_them_up():
    rows = [{"amount": 1200}, {"amount": 1800}]
    assert results(report, rows=rows, title="March")["text"] == "March: 2 sales, 3,000 in all"


def test_the_flow_file_names_functions_that_exist():
    for task in yaml.safe_load((ROOT / "flow.yaml").read_text())["tasks"].values():
        module, _, function = task["callable"].partition(":")
        assert hasattr(importlib.import_module(module), function), task["callable"]


def test_the_graph_names_flows_that_exist():
    for path in (ROOT / "graphs").glob("*.yaml"):
        graph = yaml.safe_load(path.read_text())
        flows = {node["flow"] for node in graph["nodes"].values() if "flow" in node}
        assert flows <= set(FLOWS), path.name
        for edge in graph["edges"]:
            assert {edge["from"], edge["to"]} <= set(graph["nodes"]), edge


def test_the_templates_name_actions_that_exist():
    actions = {path.stem for path in (ROOT / "actions").glob("*.json")}
    for path in (ROOT / "templates").glob("*.json"):
        template = json.loads(path.read_text())
        assert {step["action"] for step in template["steps"]} <= actions, path.name
