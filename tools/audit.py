"""`python -m tools.audit`: known vulnerabilities of what the locks pin, as pip-audit and npm report them.

Without a report (the advisory database cannot be reached, say) nothing is known. That is printed and is a
failure only with AUDIT_REQUIRED=1, so that a machine without access to it can go on.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from tools.dependencies import LOCKS, ROOT

PIP_AUDIT = ("pip-audit", "--format=json", "--require-hashes", "--disable-pip", "-r")
NPM_AUDIT = ("npm", "--prefix", "web", "audit", "--json")

Findings = list[str] | None
"""None: there is no report."""


def python_findings(report: Any) -> Findings:
    """From the JSON of pip-audit."""
    if not isinstance(report, dict) or "dependencies" not in report:
        return None
    return [
        f"{package['name']} {package['version']}: {one['id']}, fixed in {one['fix_versions']}"
        for package in report["dependencies"]
        for one in package.get("vulns", [])
    ]


def npm_findings(report: Any) -> Findings:
    """From the JSON of `npm audit`."""
    if not isinstance(report, dict) or "vulnerabilities" not in report:
        return None
    return [
        f"{name} {found['range']}: {found['severity']}" for name, found in report["vulnerabilities"].items()
    ]


def reports() -> Iterator[tuple[str, Findings]]:
    for lock in LOCKS:
        yield lock, python_findings(_report(*PIP_AUDIT, lock))
    yield "web/package-lock.json", npm_findings(_report(*NPM_AUDIT))


def _report(*command: str) -> Any:
    """None if the output is not JSON; the reason is on stderr, which is shown."""
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)  # noqa: S603
    try:
        return json.loads(done.stdout)
    except ValueError:
        return None


def is_acceptable(findings: Findings, *, required: bool) -> bool:
    return not required if findings is None else not findings


def shown(name: str, findings: Findings) -> str:
    if findings is None:
        return f"{name}: NOT CHECKED, there is no report; can the advisory database be reached?"
    return "\n  ".join([f"{name}: {len(findings)} known vulnerabilities", *findings])


def main() -> int:
    required = os.environ.get("AUDIT_REQUIRED") == "1"
    code = 0
    for name, findings in reports():
        print(shown(name, findings), flush=True)
        if not is_acceptable(findings, required=required):
            code = 1
    return code


if __name__ == "__main__":
    sys.exit(main())
