"""What importing the client costs: the best of several fresh processes, beside Python's own HTTP modules."""

import argparse
import subprocess
import sys

BASELINE = "import http.client, ssl, json"
CLIENT = "import pyoco_server.http_client"
_TIMED = "import time; began = time.perf_counter(); {}; print(time.perf_counter() - began)"


def import_ms(statement: str, processes: int) -> float:
    command = [sys.executable, "-c", _TIMED.format(statement)]
    taken = (subprocess.run(command, capture_output=True, text=True, check=True) for _ in range(processes))
    return min(float(done.stdout) for done in taken) * 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=11)
    processes = parser.parse_args().processes
    for statement in (BASELINE, CLIENT):
        print(f"{import_ms(statement, processes):6.1f} ms  {statement}")


if __name__ == "__main__":
    main()
