"""Scientific workflows as they were executed, from WfInstances of the WfCommons project (wfcommons.org).

Only which task waits for which: blast-chameleon-small-001, epigenomics-chameleon-hep-1seq-100k-001 and
1000genome-chameleon-2ch-250k-001.
"""

from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from support.http_executions import task

Parents = dict[str, list[str]]


def blast() -> Parents:
    """A query is split, searched for in 40 parts, and two tasks collect results and errors."""
    found: Parents = {"split_fasta": []}
    parts = [f"blastall-{number}" for number in range(2, 42)]
    found |= {part: ["split_fasta"] for part in parts}
    return found | {"cat_blast": parts, "cat": parts}


def epigenomics() -> Parents:
    """Nine chains of four tasks, merged twice."""
    found: Parents = {"fastqSplit": []}
    steps = ("filterContams", "sol2sanger", "fast2bfq", "map")
    for number in range(1, 10):
        chain = ["fastqSplit", *(f"{step}-{number}" for step in steps)]
        found |= {name: [before] for before, name in pairwise(chain)}
    found["mapMerge-sequence"] = [f"map-{number}" for number in range(1, 10)]
    return found | {"mapMerge": ["mapMerge-sequence"], "chr21": ["mapMerge"], "pileup": ["chr21"]}


def thousand_genomes() -> Parents:
    """Two chromosomes: 25 tasks are merged, and 14 wait for the merge and for a task beside it."""
    found: Parents = {}
    for chromosome in ("chr21", "chr22"):
        parts = [f"individuals-{chromosome}-{number}" for number in range(1, 26)]
        merge, sifting = f"individuals_merge-{chromosome}", f"sifting-{chromosome}"
        found |= {part: [] for part in parts} | {merge: parts, sifting: []}
        for population in ("AFR", "GBR", "ALL", "SAS", "EAS", "AMR", "EUR"):
            for step in ("mutation_overlap", "frequency"):
                found[f"{step}-{chromosome}-{population}"] = [merge, sifting]
    return found


WORKFLOWS: dict[str, tuple[Callable[[], Parents], int]] = {
    "blast": (blast, 43),
    "epigenomics": (epigenomics, 41),
    "1000genome": (thousand_genomes, 82),
}
"""With the number of tasks that they have there."""


def as_graph(parents: Parents) -> dict[str, Any]:
    """A fork before several first tasks and after one with several children, a join after several parents."""
    children = Counter(parent for above in parents.values() for parent in above)
    nodes: dict[str, Any] = {name: task("double", params={"n": 1}) for name in parents}
    edges: list[tuple[str, str]] = []
    leaving = {name: f"fork-{name}" if children[name] > 1 else name for name in parents}
    for name, place in leaving.items():
        if place != name:
            nodes[place] = {"type": "fork"}
            edges.append((name, place))
    for name, above in parents.items():
        place = name
        if len(above) > 1:
            place = f"join-{name}"
            nodes[place] = {"type": "join"}
            edges.append((place, name))
        edges += [(leaving[parent], place) for parent in above]
    first = [name for name, above in parents.items() if not above]
    if len(first) > 1:
        nodes["begin"] = {"type": "fork"}
        edges += [("begin", name) for name in first]
    return {"nodes": nodes, "edges": [{"from": source, "to": target} for source, target in edges]}
