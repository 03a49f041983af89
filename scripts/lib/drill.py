# SPDX-License-Identifier: Apache-2.0
"""What quickstart, bench and chaos share: directories that go away again, native jobs, how a recovery is measured."""
import json
import os
import shutil
import signal
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(1, os.path.join(ROOT, "tests", "cluster"))
sys.path.insert(1, os.path.join(ROOT, "tests", "chaos"))
import judge  # noqa: E402
import processes  # noqa: E402
from holdfast_cluster import Cluster, final_losses, job_name, step_gaps  # noqa: E402,F401

BINARIES = ("holdfast", "holdfast-scheduler", "holdfast-agent", "holdfast-keeper", "holdfast-worker", "holdfast-ckpt",
            "holdfast-data")
START_DEADLINE_S = 120


class Interrupted(Exception):
    """A signal asked the program to end."""


def end_on_signals():
    """SIGTERM, SIGINT and SIGHUP raise Interrupted in the main thread, so that everything started is stopped again."""
    def raise_interrupted(number, _frame):
        for signo in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(signo, signal.SIG_IGN)
        raise Interrupted(signal.Signals(number).name)

    for signo in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signo, raise_interrupted)


class WorkDirectory:
    """A directory with a short name; at the end its processes are killed and it is removed, unless it is to be kept."""

    def __init__(self, keep=None):
        self.keep = keep is not None
        self.path = os.path.realpath(keep) if keep else tempfile.mkdtemp(prefix="hf_")
        os.makedirs(self.path, exist_ok=True)

    def __enter__(self):
        return self.path

    def __exit__(self, *unused):
        left = processes.of_directory(self.path)
        for _ in range(5):
            if not left:
                break
            processes.kill_all(left)
            left = processes.of_directory(self.path)
        if not self.keep:
            shutil.rmtree(self.path, ignore_errors=True)


def write_json(path, value):
    with open(path, "w", encoding="utf-8") as file:
        json.dump(value, file, indent=1)
    return path


def native_job(name, config_path, nodes, gpus, persist_every, environment=None, restarts_max=100):
    """The specification of a job of the native trainer."""
    return {"name": name, "trainer_config": config_path, "nodes": nodes, "gpus_per_node": gpus,
            "snapshot_every_steps": 1, "persist_every_steps": persist_every, "restarts_max": restarts_max,
            "environment": environment or {}}


class Fault:
    """One injected fault and what was seen of its recovery, on the injector's clocks."""

    def __init__(self, inject):
        self.at = inject()  # CLOCK_MONOTONIC just before the signal was sent
        self.wall_ns = time.time_ns() - int((time.monotonic() - self.at) * 1e9)  # the same moment on the wall clock
        self.first_step_ms = None

    def wait_first_step(self, cluster, job, attempt, world, deadline_s=START_DEADLINE_S):
        """Waits until all ranks of `attempt` have finished a step: by the ranks' own CLOCK_MONOTONIC."""
        self.first_step_ms = (cluster.wait_first_step(job, attempt, world, deadline_s) - self.at) * 1000

    def times(self, incident):
        """The five times from the injection. The first four are the incident's, which counts from begin_wall_ns."""
        result = judge.times(incident, self.wall_ns, acted=True)
        result["first_step_ms"] = rounded(self.first_step_ms, 1)
        return result


def redone_steps(rows):
    """How many steps of a step log were done more than once."""
    return len(rows) - len({row["step"] for row in rows})


def median(values):
    ordered = sorted(values)
    middle = len(ordered) // 2
    if not ordered:
        return None
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def rounded(value, digits=3):
    return None if value is None else round(value, digits)
