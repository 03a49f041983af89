# SPDX-License-Identifier: Apache-2.0
"""The faults that scripts/chaos injects: signals from outside, at a target drawn by a seed.

An injector knows what it hit (Hit); nothing of that is written where scheduler, agent or rank could read it.
"""
import dataclasses
import signal
import time
from typing import Callable, Optional

import processes


@dataclasses.dataclass
class Hit:
    """What was hit, and when: CLOCK_MONOTONIC in s and the wall clock in ns, read just before the fault."""

    target: str                    # for people: "rank 2 (pid 1234)"
    ranks: tuple = ()              # whom a verdict has to name
    node: str = ""                 # which node a verdict has to name
    mono_s: float = 0.0
    wall_ns: int = 0
    undo: Optional[Callable[[], None]] = None  # brings back what the fault holds down


def stamp(hit):
    hit.mono_s, hit.wall_ns = time.monotonic(), time.time_ns()
    return hit


def _signal_rank(cluster, job, random, signo):
    pids = processes.wait_until(lambda: cluster.rank_pids(job), 30, f"ranks of job {job}")
    rank = random.choice(sorted(pids))
    hit = stamp(Hit(f"rank {rank} (pid {pids[rank]})", ranks=(rank,)))
    if not processes.send(pids[rank], signo):
        raise TimeoutError(f"{hit.target} was gone before the fault")
    return hit


def rank_sigkill(cluster, job, random):
    return _signal_rank(cluster, job, random, signal.SIGKILL)


def rank_sigstop(cluster, job, random):
    return _signal_rank(cluster, job, random, signal.SIGSTOP)


def _placed_node(cluster, job, random):
    return random.choice([node["node"] for node in cluster.describe(job)["placement"]["nodes"]])


def agent_sigkill(cluster, job, random):
    node = _placed_node(cluster, job, random)
    pid = cluster.wait_pid(f"agent-{node}")
    hit = stamp(Hit(f"agent of {node} (pid {pid})", node=node))
    processes.send(pid, signal.SIGKILL)
    cluster.wait_pid(f"agent-{node}", other_than=pid)
    return hit


def keeper_sigkill(cluster, job, random):
    node = _placed_node(cluster, job, random)
    ranks = tuple(sorted(cluster.rank_pids(job, node)))
    pid = processes.wait_until(lambda: cluster.keeper_pid(node, job), 30, f"a keeper of job {job} on {node}")
    hit = stamp(Hit(f"keeper of {node} (pid {pid}, ranks {', '.join(map(str, ranks))})", ranks=ranks))
    processes.send(pid, signal.SIGKILL)
    return hit


def scheduler_sigkill(cluster, job, random):
    del job, random  # there is one scheduler
    pid = cluster.wait_pid("scheduler")
    hit = stamp(Hit(f"scheduler (pid {pid})"))
    processes.send(pid, signal.SIGKILL)
    cluster.wait_pid("scheduler", other_than=pid)
    return hit


def node_lost(cluster, job, random):
    """Agent, keepers and ranks at once. The agent stays down until undo()."""
    node = _placed_node(cluster, job, random)
    hit = stamp(Hit(f"node {node}", node=node, undo=lambda: cluster.release(f"agent-{node}")))
    hit.mono_s = cluster.kill_node(node)
    hit.wall_ns = time.time_ns() - int((time.monotonic() - hit.mono_s) * 1e9)
    return hit


INJECTORS = {
    "rank-sigkill": rank_sigkill,
    "rank-sigstop": rank_sigstop,
    "agent-sigkill": agent_sigkill,
    "keeper-sigkill": keeper_sigkill,
    "scheduler-sigkill": scheduler_sigkill,
    "node-lost": node_lost,
}
