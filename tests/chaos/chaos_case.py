# SPDX-License-Identifier: Apache-2.0
"""One case: a cluster of its own, one job, one fault from outside, and what an outsider can see of what follows."""
import dataclasses
import json
import os
import random
import shutil
import sys
import tempfile
import time

sys.path.insert(1, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "cluster"))
import holdfast_cluster  # noqa: E402
import processes  # noqa: E402
from holdfast_cluster import Cluster, CommandFailed, final_losses, step_gaps  # noqa: E402

import injector  # noqa: E402
import judge  # noqa: E402

START_S = 90       # until the step of the fault; the machine may be busy
RECOVERY_S = 90
END_S = 180
LATEST_SHARE = 0.6  # of the job's steps: the fault comes before, so that its recovery is not its end
EARLIEST_STEP = 5
STEP_S_MAX = 2.0
HELD = ("NODE_STATE_DRAINING", "NODE_STATE_DRAINED", "NODE_STATE_DIRTY")


@dataclasses.dataclass
class Reference:
    digest: str
    losses: dict


def work_directory(prefix="hf_"):
    """A short path: Unix sockets have 107 bytes."""
    return tempfile.mkdtemp(prefix=prefix)


def undisturbed(binaries, job):
    """Runs `job` without a fault, in its own state and store."""
    directory = work_directory()
    cluster = Cluster(directory, job.nodes, job.gpus_per_node, binaries)
    try:
        cluster.up()
        number = cluster.submit(job.spec(cluster))
        cluster.wait_state(number, "DONE", START_S + END_S)
        rows = cluster.steps(number)
        gaps = step_gaps(rows, job.steps)
        if gaps:
            raise CommandFailed(f"the undisturbed run's step log has gaps: {'; '.join(gaps)}")
        reference = Reference(cluster.digest(number, job.steps), final_losses(rows))
        cluster.down()
        return reference
    finally:
        cluster.stop_hard()
        shutil.rmtree(directory, ignore_errors=True)


def pace_s(recorders, since_s):
    """Seconds a step, by what the ranks have done since their first one."""
    done = max((recorder.steps_done for recorder in recorders.values()), default=0)
    first = min((recorder.first_step_done_s for recorder in recorders.values()), default=0)
    return min(max((since_s - first) / max(done - 1, 1), 0.0), STEP_S_MAX) if first else 0.0


def wait_moment(cluster, job, step, world, draw):
    """Returns at a moment drawn within the step after `step`, which all ranks have finished."""
    recorders = cluster.wait_step(job, step, START_S, ranks=world)
    # The wait is the drawn moment itself: a fault at the boundary of steps would test one interleaving only.
    time.sleep(draw.random() * pace_s(recorders, time.monotonic()))


def steps_lost(rows, attempt_before):
    """Finished steps that later attempts had to do again, by the step log."""
    old = [row["step"] for row in rows if row["attempt"] <= attempt_before]
    new = [row["step"] for row in rows if row["attempt"] > attempt_before]
    return max(0, max(old) - min(new) + 1) if old and new else 0


class Case:
    """Runs one case and keeps what it saw. What Holdfast does wrong is a problem of the case, never an exception."""

    def __init__(self, binaries, job, kind, answer, seed):
        self.job = job
        self.kind = kind
        self.answer = answer
        self.seed = seed
        self._binaries = binaries
        self._draw = random.Random(f"{kind} {seed}")
        self._problems = []
        self.hit = None
        self.first_step_s = None   # CLOCK_MONOTONIC: all ranks of the next attempt have finished a step
        self.ranks_of_node = ()
        self.lost = 0
        self.times = judge.times(None, 0, False)

    def run(self, reference):
        """Gives the Judgement."""
        directory = work_directory()
        spare = 1 if self.kind == "node-lost" else 0
        cluster = Cluster(directory, self.job.nodes + spare, self.job.gpus_per_node, self._binaries)
        seen = judge.Seen(status={}, incidents=[], reference=reference.digest)
        try:
            cluster.up()
            number = cluster.submit(self.job.spec(cluster))
            self._inject(cluster, number)
            self._watch(cluster, number)
            self._finish(cluster, number, reference, seen)
            cluster.down()
        except (CommandFailed, AssertionError, TimeoutError, OSError, ValueError, KeyError) as error:
            self._problems.append(f"{type(error).__name__}: {error}")
        finally:
            seen.problems = tuple(self._problems)
            hit = self.hit or injector.Hit("nothing was hit")
            judgement = judge.judge(self.answer, hit.ranks, hit.node, seen, self.ranks_of_node)
            if judgement.why:
                self._keep_evidence(cluster)
            cluster.stop_hard()
            shutil.rmtree(directory, ignore_errors=True)
        return judgement

    def _inject(self, cluster, number):
        latest = max(EARLIEST_STEP, int(self.job.steps * LATEST_SHARE))
        wait_moment(cluster, number, self._draw.randint(EARLIEST_STEP, latest), self.job.world, self._draw)
        placed = {node["node"]: [int(rank.get("rank", 0)) for rank in node["ranks"]]
                  for node in cluster.describe(number)["placement"]["nodes"]}
        self.hit = injector.INJECTORS[self.kind](cluster, number, self._draw)
        self.ranks_of_node = tuple(placed.get(self.hit.node, ()))

    def _watch(self, cluster, number):
        """Waits for the first step of the next attempt where one is right; then brings back what was held down."""
        try:
            if self.answer["rung"] >= 2:
                self.first_step_s = cluster.wait_first_step(number, 2, self.job.world, RECOVERY_S)
        finally:
            if self.hit.undo:
                self.hit.undo()

    def _finish(self, cluster, number, reference, seen):
        processes.wait_until(lambda: cluster.job_state(number) in holdfast_cluster.END_STATES, END_S,
                             lambda: f"an end of {self.kind}'s job\n{cluster.evidence(number)}", 0.1)
        seen.status = cluster.describe(number)
        seen.incidents = all_incidents(cluster, number, seen.status)
        rows = cluster.steps(number)
        self.lost = steps_lost(rows, 1)
        incident = seen.incidents[0] if seen.incidents else None
        self.times = judge.times(incident, self.hit.wall_ns, self.answer["rung"] >= 2)
        if self.first_step_s:
            self.times["first_step_ms"] = round((self.first_step_s - self.hit.mono_s) * 1000, 1)
        seen.nodes_held = tuple(node["name"] for node in cluster.node_list() if node.get("state") in HELD)
        if judge.end_text(seen.status) == "DONE":
            seen.digest = cluster.digest(number, self.job.steps)
            self._problems += step_gaps(rows, self.job.steps)
            if final_losses(rows) != reference.losses:
                self._problems.append("losses differ from the undisturbed run's")

    def _keep_evidence(self, cluster):
        """Copies state without checkpoints when HOLDFAST_TEST_KEEP names a directory and something went wrong."""
        keep = os.environ.get("HOLDFAST_TEST_KEEP")
        if keep:
            target = os.path.join(keep, f"{self.kind}-{self.seed}")
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(cluster.state, target, ignore=shutil.ignore_patterns("store", "*.sock", "sock", "db"),
                            ignore_dangling_symlinks=True)

    def line(self, number, judgement):
        """The case's line."""
        line = {"case": number, "seed": self.seed, "fault": self.kind,
                "target": self.hit.target if self.hit else None, "expected": judge.expected_text(self.answer)}
        line.update(self.times)
        line.update(verdict=judgement.verdict, correct=judgement.correct, end=judgement.end,
                    bitwise_equal=judgement.bitwise_equal)
        return line


def all_incidents(cluster, number, status):
    """The job's incidents, and those of nodes that events alone tell of, each once in its last form, oldest first."""
    found = {}
    for event in cluster.events():
        incident = event.get("incident")
        if incident and int(incident.get("job", 0)) in (0, number):
            found[int(incident.get("id", 0)), incident.get("fault_class"), incident.get("node", "")] = incident
    for incident in status.get("incidents", []):
        found[int(incident.get("id", 0)), incident.get("fault_class"), incident.get("node", "")] = incident
    return sorted(found.values(), key=lambda incident: int(incident.get("begin_wall_ns", 0)))


def print_line(line):
    print(json.dumps(line), flush=True)
