"""What traces cost a run: the CPU time of gateway and worker without them, and with a share that is sampled.

Installations stand beside each other and take turns, so the machine's moods reach all of them. The collector
is real, but only counts what it receives.
"""

import argparse
import asyncio
import statistics
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from end_to_end import submit, wait_for_completed
from installation import HOST, Installation, installation
from processes import unwind_on_sigterm

WARM_RUNS = 300
GOAL = 1.05
OFF = "off"


class _Sink(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    received = 0

    def do_POST(self) -> None:
        type(self).received += len(self.rfile.read(int(self.headers["content-length"])))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def collector() -> Iterator[str]:
    """Its URL."""
    with ThreadingHTTPServer((HOST, 0), _Sink) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://{HOST}:{server.server_port}"
        finally:
            server.shutdown()


def settings(share: float | None, endpoint: str) -> dict[str, str]:
    if share is None:
        return {"OTEL_TRACES_EXPORTER": "none"}
    return {
        "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
        "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
        "OTEL_TRACES_SAMPLER_ARG": str(share),
    }


def cpu_us(whole: Installation, runs: int, before_runs: int) -> dict[str, float]:
    """Per run, by process."""
    before = whole.cpu_seconds()
    asyncio.run(submit(whole.port, runs, ["default"]))
    wait_for_completed(whole.url, before_runs + runs)
    after = whole.cpu_seconds()
    return {name: (after[name] - before[name]) / runs * 1e6 for name in after}


Costs = dict[str, list[dict[str, float]]]
"""By installation, then by round."""


def measure(shares: dict[str, float | None], runs: int, rounds: int) -> Costs:
    with ExitStack() as stack:
        endpoint = stack.enter_context(collector())
        every = {
            name: stack.enter_context(installation("fast", **settings(share, endpoint)))
            for name, share in shares.items()
        }
        for whole in every.values():
            whole.start_worker("worker")
            cpu_us(whole, WARM_RUNS, 0)
        found: Costs = {name: [] for name in shares}
        for number in range(rounds):
            done = WARM_RUNS + number * runs
            for name in shares if number % 2 == 0 else reversed(shares):
                found[name].append(cpu_us(every[name], runs, done))
        return found


def summary(found: Costs, name: str) -> str:
    """Round by round against the installation without traces."""
    pairs = list(zip(found[name], found[OFF], strict=True))
    ratios = sorted(sum(on.values()) / sum(off.values()) for on, off in pairs)
    parts = (
        f"{part} {statistics.median(on[part] - off[part] for on, off in pairs):+.0f}" for part in pairs[0][0]
    )
    return (
        f"  {name}: ratio {statistics.median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f}); "
        f"medians of the difference in µs: {', '.join(parts)}"
    )


def main() -> None:
    unwind_on_sigterm()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=2000, help="per round")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--shares", default="0,0.1", help="sampled, separated by commas")
    chosen = parser.parse_args()
    shares: dict[str, float | None] = {OFF: None, "off again, which shows the noise": None}
    shares |= {f"{float(share):.0%} sampled": float(share) for share in chosen.shares.split(",")}
    found = measure(shares, chosen.runs, chosen.rounds)
    parts = (f"{part} {statistics.median(one[part] for one in found[OFF]):.0f}" for part in found[OFF][0])
    print(f"CPU per run without traces, µs: {', '.join(parts)}")
    for name in list(shares)[1:]:
        print(summary(found, name), flush=True)
    print(f"  goal at 10 %: {GOAL}; the collector received {_Sink.received:,} bytes")


if __name__ == "__main__":
    main()
