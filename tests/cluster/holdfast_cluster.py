# SPDX-License-Identifier: Apache-2.0
"""A whole cluster on this machine for tests and drills: the real `holdfast up --simulate` in a directory of its own.

    with Cluster(directory, nodes=2, gpus=2) as cluster:
        job = cluster.submit({"name": "a", "command": [...], "nodes": 2, "gpus_per_node": 2})
        cluster.wait_state(job, "DONE")

Faults are injected from outside (signals, files); pids come from /proc, times from the injector's clock and the ranks'
recorders. Waiting is for a condition with a deadline, by polling what an outsider can see.
"""
import collections
import json
import os
import shutil
import signal
import subprocess
import time

import processes
import recorders

END_STATES = ("DONE", "FAILED", "CANCELLED", "PREEMPTED")
CLI_TIMEOUT_S = 60
CLI_POLL_S = 0.1  # between two runs of the command line while waiting for something

Result = collections.namedtuple("Result", "code out err")


class CommandFailed(AssertionError):
    """A command of ours ended otherwise than expected."""


def built_binaries():
    return os.path.join(os.environ["HOLDFAST_BUILD_DIR"], "bin")


def documents(text):
    """The JSON documents in a text, one after the other."""
    decoder, found, at = json.JSONDecoder(), [], 0
    while at < len(text):
        if text[at].isspace():
            at += 1
            continue
        document, at = decoder.raw_decode(text, at)
        found += document if isinstance(document, list) else [document]
    return found


def json_lines(path):
    """The whole lines of a file of JSON lines that may still be written to; none while it is not there."""
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file if line.endswith("\n")]


def job_number(job):
    return int(str(job)[2:] if str(job).startswith("j-") else job)


def job_name(job):
    return f"j-{job_number(job)}"


class Cluster:
    """One `holdfast up` with its state, its store and its jobs. Not thread-safe."""

    def __init__(self, directory, nodes=2, gpus=2, binaries=None, extra_up=()):
        self.directory = os.path.realpath(directory)
        self.state = os.path.join(self.directory, "s")
        self.binaries = binaries or os.environ.get("HOLDFAST_BIN") or built_binaries()
        self.nodes = nodes
        self.gpus = gpus
        self.extra_up = tuple(extra_up)
        self.temporary = os.path.join(self.directory, "tmp")  # TMPDIR of everything that is started
        os.makedirs(self.temporary, exist_ok=True)
        self._environment = {key: value for key, value in os.environ.items() if not key.startswith("HOLDFAST_")}
        self._environment["TMPDIR"] = self.temporary

    def __enter__(self):
        self.up()
        return self

    def __exit__(self, kind, *unused):
        if kind is None:
            self.down()
        else:
            self.stop_hard()

    # -- the command line

    def tool(self, name, *arguments, timeout=CLI_TIMEOUT_S, cwd=None):
        """Runs a program of the build and gives (code, out, err)."""
        done = subprocess.run([os.path.join(self.binaries, name), *map(str, arguments)], stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, errors="replace",
                              timeout=timeout * processes.PATIENCE, cwd=cwd,
                              env=self._environment)
        return Result(done.returncode, done.stdout, done.stderr)

    def cli(self, verb, *arguments, expect=0, timeout=CLI_TIMEOUT_S):
        """Runs `holdfast VERB --state S ...`; CommandFailed unless it ends with `expect` (None: whatever)."""
        result = self.tool("holdfast", verb, "--state", self.state, *arguments, timeout=timeout)
        if expect is not None and result.code != expect:
            raise CommandFailed(f"holdfast {verb} {' '.join(map(str, arguments))} ended with {result.code}, "
                                f"not {expect}\n{result.out}\n{result.err}")
        return result

    def json_lines(self, verb, *arguments):
        """The JSON documents that a verb prints with --json: one, or one a line."""
        return documents(self.cli(verb, *arguments, "--json").out)

    # -- life of the cluster

    def up(self):
        """Starts everything and returns when all nodes are ready."""
        self.cli("up", "--nodes", self.nodes, "--gpus-per-node", self.gpus, "--simulate", "-d", *self.extra_up,
                 timeout=120)
        processes.wait_until(lambda: self.ready_nodes() >= self.nodes, 30, f"{self.nodes} ready nodes", CLI_POLL_S)

    def ready_nodes(self):
        result = self.cli("nodes", "--json", expect=None)
        if result.code != 0:
            return 0
        return sum(node.get("state") == "NODE_STATE_READY" for node in self.node_list())

    def node_list(self):
        nodes = []
        for document in self.json_lines("nodes"):
            nodes += document.get("nodes", [document] if "name" in document else [])
        return nodes

    def down(self):
        """Ends everything by `holdfast down`; an error if a process stays."""
        self.cli("down", timeout=90)
        left = processes.wait_gone(processes.of_directory(self.directory), 10)
        if left:
            text = "\n".join(processes.describe(pid) for pid in left)
            processes.kill_all(left)
            raise CommandFailed(f"processes left after `holdfast down`:\n{text}")

    def stop_hard(self):
        """After a failure: kills whatever belongs to the directory, supervisors first, so that nothing starts again."""
        for _ in range(5):
            left = processes.of_directory(self.directory)
            if not left:
                return
            processes.kill_all(sorted(left))

    def discard(self):
        shutil.rmtree(self.directory, ignore_errors=True)

    # -- jobs

    def submit(self, spec, expect=0, arguments=()):
        """Submits a specification (a dictionary of job.yaml's fields) and gives the job's number."""
        path = os.path.join(self.directory, f"job-{spec.get('name', 'x')}.yaml")
        with open(path, "w", encoding="utf-8") as file:
            json.dump(spec, file)  # JSON is YAML
        result = self.cli("submit", "-f", path, "--json", *arguments, expect=expect)
        return int(json.loads(result.out)["job"]) if expect == 0 and "--wait" not in arguments else result

    def describe(self, job):
        return self.json_lines("describe", job_name(job))[0]

    def job_state(self, job):
        """"RUNNING", "DONE", ...; "" while the scheduler does not answer."""
        result = self.cli("describe", job_name(job), "--json", expect=None)
        return json.loads(result.out).get("state", "").replace("JOB_STATE_", "") if result.code == 0 else ""

    def wait_state(self, job, states, deadline_s=60):
        """Waits for one of `states`; fails at once when the job ends in another one."""
        wanted = (states,) if isinstance(states, str) else tuple(states)

        def reached():
            state = self.job_state(job)
            if state in END_STATES and state not in wanted:
                raise AssertionError(f"{job_name(job)} ended {state}, not {'/'.join(wanted)}\n{self.evidence(job)}")
            return state if state in wanted else None

        return processes.wait_until(
            reached, deadline_s, lambda: f"{job_name(job)} {'/'.join(wanted)}\n{self.evidence(job)}", CLI_POLL_S)

    def evidence(self, job):
        """What a person would look at first."""
        parts = [self.cli("describe", job_name(job), expect=None),
                 self.cli("events", "--job", job_name(job), expect=None)]
        text = "\n".join((part.out + part.err)[-4000:] for part in parts)
        return text + "\n" + "\n".join(f"{path}:\n{tail}" for path, tail in self.log_tails(job))

    def log_tails(self, job, size=1500):
        for folder, _, names in os.walk(self.state):
            for name in sorted(names):
                if name.endswith(".log") and (f"{os.sep}{job_name(job)}{os.sep}" in folder + os.sep or "run" in folder):
                    with open(os.path.join(folder, name), "rb") as file:
                        yield os.path.join(folder, name), file.read()[-size:].decode("utf-8", "replace")

    # -- events and incidents

    def events(self, job=None, after=0):
        arguments = ["--after", str(after)] if after else []
        if job is not None:
            arguments += ["--job", job_name(job)]
        return self.json_lines("events", *arguments)

    def wait_event(self, predicate, deadline_s=30, what="event", after=0):
        """The first event after sequence `after` for which `predicate(event)` is true."""
        def found():
            if self.cli("nodes", expect=None).code != 0:
                return None
            return next((event for event in self.events(after=after) if predicate(event)), None)

        def seen():
            return f"{what}; events: " + "; ".join(f"{e.get('kind')} {e.get('text', '')}" for e in self.events()[-20:])

        return processes.wait_until(found, deadline_s, seen, CLI_POLL_S)

    def last_sequence(self):
        return max([int(event.get("sequence", 0)) for event in self.events()], default=0)

    def incidents(self, job):
        return self.describe(job).get("incidents", [])

    # -- processes

    def supervised_pid(self, name):
        """The pid of a daemon that `up` supervises ("scheduler", "agent-n0"), or 0."""
        try:
            with open(os.path.join(self.state, "run", name + ".pid"), encoding="ascii") as file:
                pid = int(file.read().split()[0])
        except (OSError, ValueError, IndexError):
            return 0
        return pid if processes.alive(pid) else 0

    def wait_pid(self, name, other_than=0, deadline_s=20):
        def started():
            pid = self.supervised_pid(name)
            return pid if pid != other_than else 0

        return processes.wait_until(started, deadline_s, f"a process for {name} other than {other_than}")

    def keeper_dir(self, node, job):
        return os.path.join(self.state, "nodes", node, "keepers", job_name(job))

    def keeper_pid(self, node, job):
        try:
            with open(os.path.join(self.keeper_dir(node, job), "pid"), encoding="ascii") as file:
                pid = int(file.read().split()[0])
        except (OSError, ValueError, IndexError):
            return 0
        return pid if processes.alive(pid) else 0

    def node_names(self):
        return [f"n{index}" for index in range(self.nodes)]

    def rank_pids(self, job, node=None):
        """{rank: pid} of the live ranks, by their environment; `node` narrows it to the ranks of one node."""
        folder = os.path.join(self.state, "nodes", node or "")
        found = {}
        for pid in processes.of_directory(self.state):
            environment = processes.environment(pid)
            if environment.get("HOLDFAST_JOB") == job_name(job) and \
                    environment.get("HOLDFAST_SOCKET", "").startswith(folder) and is_rank_itself(pid, environment):
                found[int(environment["RANK"])] = pid
        return found

    def recorders(self, job):
        """{rank: Recorder} of the newest attempt, read from the keepers' descriptors."""
        found = {}
        for node in self.node_names():
            pid = self.keeper_pid(node, job)
            if pid:
                for rank, recorder in recorders.of_keeper(pid).items():
                    if recorder.job == job_number(job) and \
                            recorder.attempt >= found.get(rank, recorder).attempt:
                        found[rank] = recorder
        newest = max((recorder.attempt for recorder in found.values()), default=0)
        return {rank: recorder for rank, recorder in found.items() if recorder.attempt == newest}

    def recorded_steps(self, job):
        """{rank: [recorders.Step]} of the newest attempt, as far as the recorders' rings hold them."""
        found = {}
        for node in self.node_names():
            pid = self.keeper_pid(node, job)
            if pid:
                found.update(recorders.steps_of_keeper(pid))
        return found

    def collectives(self, job):
        """{rank: recorders.Collectives} of the newest attempt, read from outside while the ranks run."""
        found = {}
        for node in self.node_names():
            pid = self.keeper_pid(node, job)
            if pid:
                found.update(recorders.collectives_of_keeper(pid))
        return found

    def committed_steps(self, job):
        """The steps of its committed checkpoints, by what holdfast-ckpt says of the files alone."""
        result = self.tool("holdfast-ckpt", "ls", "--store", self.store(), "--json")
        if result.code != 0:
            raise AssertionError(result.err)
        rows = [entry for row in documents(result.out) for entry in row.get("checkpoints", [row])]
        return sorted(int(row["step"]) for row in rows if str(row["job"]) == job_name(job) and row.get("committed"))

    def wait_checkpoint(self, job, step, deadline_s=60):
        """Waits until the checkpoint of `step` is committed, by what holdfast-ckpt says of the files alone."""
        def committed():
            result = self.tool("holdfast-ckpt", "show", "--store", self.store(), f"{job_name(job)}@{step}")
            return result.code == 0

        processes.wait_until(committed, deadline_s, lambda: f"checkpoint {job_name(job)}@{step}\n{self.evidence(job)}",
                             CLI_POLL_S)

    def wait_step(self, job, step, deadline_s=60, ranks=None):
        """Waits until every rank of the job (or `ranks` of them) has finished `step`; gives the recorders."""
        def reached():
            found = self.recorders(job)
            count = ranks or next((recorder.world_size for recorder in found.values()), 1)
            return found if len(found) >= count and all(r.steps_done >= step for r in found.values()) else None

        return processes.wait_until(
            reached, deadline_s, lambda: f"step {step} of {job_name(job)}\n{self.evidence(job)}")

    def wait_first_step(self, job, attempt, world, deadline_s=60):
        """CLOCK_MONOTONIC at which the last rank of `attempt` (or a newer one) finished its first step."""
        def reached():
            found = self.recorders(job)
            first = [recorder.first_step_done_s for recorder in found.values() if recorder.attempt >= attempt]
            return max(first) if len(first) == world and all(first) else None

        return processes.wait_until(
            reached, deadline_s,
            lambda: f"the first step of attempt {attempt} of {job_name(job)}\n{self.evidence(job)}")

    # -- faults

    def hold(self, name):
        """Tells `up` not to restart a daemon until release()."""
        folder = os.path.join(self.state, "run", "hold")
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, name), "w", encoding="ascii"):
            pass

    def release(self, name):
        os.unlink(os.path.join(self.state, "run", "hold", name))

    def kill_rank(self, job, rank, signo=signal.SIGKILL):
        """Signals a rank; gives CLOCK_MONOTONIC just before it."""
        pid = processes.wait_until(lambda: self.rank_pids(job).get(rank), 30, f"a process of rank {rank}")
        now = time.monotonic()
        processes.send(pid, signo)
        return now

    def kill_daemon(self, name, signo=signal.SIGKILL):
        pid = self.wait_pid(name)
        now = time.monotonic()
        processes.send(pid, signo)
        return now

    def kill_keeper(self, node, job):
        pid = processes.wait_until(lambda: self.keeper_pid(node, job), 30, f"a keeper of {job_name(job)} on {node}")
        now = time.monotonic()
        processes.send(pid, signal.SIGKILL)
        return now

    def kill_node(self, node):
        """Agent, keepers and ranks of a node at once; the agent stays down until release("agent-<node>")."""
        self.hold(f"agent-{node}")
        pids = processes.of_directory(os.path.join(self.state, "nodes", node))
        supervisors = [pid for pid in pids if "holdfast" == os.path.basename((processes.command_line(pid) or [""])[0])]
        pids = [pid for pid in pids if pid not in supervisors]
        now = time.monotonic()
        for pid in pids:
            processes.send(pid, signal.SIGKILL)
        left = processes.wait_gone(pids, 10)
        if left:
            raise CommandFailed(f"{node}: could not kill {[processes.describe(pid) for pid in left]}")
        return now

    # -- what a job leaves

    def steps_path(self, job):
        return os.path.join(self.state, "jobs", job_name(job), "steps.jsonl")

    def steps(self, job):
        """Rows of the step log; a last line that is being written is left out."""
        try:
            with open(self.steps_path(job), encoding="utf-8") as file:
                return [json.loads(line) for line in file if line.endswith("\n")]
        except FileNotFoundError:
            return []

    def store(self):
        return os.path.join(self.state, "store")

    def digest(self, job, step, store=None):
        """The state digest of the committed checkpoint of `step`, by holdfast-ckpt from the files alone."""
        result = self.tool("holdfast-ckpt", "digest", "--store", store or self.store(), f"{job_name(job)}@{step}")
        if result.code != 0:
            raise CommandFailed(f"holdfast-ckpt digest {job_name(job)}@{step} ended with {result.code}: {result.err}")
        return result.out.split()[0]

    def sockets(self):
        """Unix sockets of this cluster that exist as files or are bound."""
        with open("/proc/net/unix", encoding="utf-8", errors="replace") as file:
            bound = {line.split()[7] for line in file if len(line.split()) > 7}
        return sorted(path for path in bound if path.lstrip("@").startswith(self.directory + "/"))


def is_rank_itself(pid, environment):
    """A rank has its own session; a child of it has the same environment and its rank's."""
    return "RANK" in environment and os.getsid(pid) == pid if processes.alive(pid) else False


def step_gaps(rows, last_step=None):
    """What is wrong with a step log: gaps, steps back without a new attempt, attempts going down. Empty: contiguous."""
    problems, previous = [], None
    for row in rows:
        if previous is None:
            if row["step"] != 1:
                problems.append(f"starts with step {row['step']}")
        elif row["attempt"] == previous["attempt"]:
            if row["step"] != previous["step"] + 1:
                problems.append(f"attempt {row['attempt']}: step {row['step']} after {previous['step']}")
        elif row["attempt"] < previous["attempt"]:
            problems.append(f"attempt {row['attempt']} after {previous['attempt']}")
        elif row["step"] > previous["step"] + 1:
            problems.append(f"attempt {row['attempt']} starts with step {row['step']} after {previous['step']}")
        previous = row
    if last_step is not None and (previous is None or previous["step"] != last_step):
        problems.append(f"ends with step {previous and previous['step']}, not {last_step}")
    return problems


def final_losses(rows):
    """{step: loss} of the line that counts: the newest attempt's."""
    return {row["step"]: row["loss"] for row in rows}
