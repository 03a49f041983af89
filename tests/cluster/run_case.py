# SPDX-License-Identifier: Apache-2.0
"""What the tests of `holdfast run` share: starting it in a directory of the test, and seeing what it leaves."""
import os
import re
import select
import shutil
import subprocess
import sys
import time
import unittest

import processes
from cluster_case import temporary_directory
from holdfast_cluster import built_binaries, json_lines

HERE = os.path.dirname(os.path.abspath(__file__))
RANK = os.path.join(HERE, "store_rank.py")
DEADLINE_S = 60  # a machine may be busy; alone a run takes 1 to 2 s


class RunCase(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        self.directory = temporary_directory()
        self.addCleanup(shutil.rmtree, self.directory, ignore_errors=True)
        self.started = []
        self.addCleanup(self.kill_leftovers)

    def kill_leftovers(self):
        processes.kill_all(processes.of_directory(self.directory))
        for process in self.started:
            process.stdout.close()
            process.stderr.close()

    def start(self, *arguments, environment=None):
        """Starts `holdfast run`; its temporary files go below the test's directory, so that what is left is found."""
        process = subprocess.Popen(
            [os.path.join(built_binaries(), "holdfast"), "run", *map(str, arguments)], stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=self.directory,
            env={**os.environb, b"TMPDIR": self.directory.encode(), b"HOLDFAST_LEDGER": b"",
                 b"PYTHON_EXEC": sys.executable.encode(),
                 **{os.fsencode(k): os.fsencode(v) for k, v in (environment or {}).items()}})
        self.started.append(process)
        return process

    def finish(self, process):
        out, err = process.communicate(timeout=DEADLINE_S * processes.PATIENCE)
        return process.returncode, out.decode("utf-8", "replace"), err.decode("utf-8", "replace")

    def read_until(self, process, pattern, count=1):
        """What a run has written on stdout until `pattern` was in it `count` times."""
        seen, end = "", time.monotonic() + DEADLINE_S * processes.PATIENCE
        while len(re.findall(pattern, seen)) < count:
            ready = select.select([process.stdout.fileno()], [], [], max(0, end - time.monotonic()))[0]
            if not ready:
                raise TimeoutError(f"{pattern!r} {count} times in {seen!r}\n{self.what_happened()}")
            more = os.read(process.stdout.fileno(), 65536)
            if not more:
                self.fail(f"the run ended before {pattern!r} was there {count} times in {seen!r}\n"
                          f"{self.what_happened()}")
            seen += more.decode("utf-8", "replace")
        return seen

    def run_ranks(self, ranks, *arguments, **options):
        return self.finish(self.start("--nproc-per-node", ranks, RANK, self.directory, *arguments, **options))

    def notes(self):
        return json_lines(os.path.join(self.directory, "log"))

    def wait_step(self, step, attempt=0):
        """Waits until a rank has finished `step` in `attempt`; gives the pids of its ranks."""
        def reached():
            return any(n.get("step", 0) >= step and n["attempt"] == attempt for n in self.notes())
        try:
            processes.wait_until(reached, DEADLINE_S, f"step {step} of attempt {attempt}")
        except TimeoutError as error:
            raise TimeoutError(f"{error}\n{self.what_happened()}") from None
        return {n["rank"]: n["pid"] for n in self.notes() if n["attempt"] == attempt}

    def what_happened(self):
        """Ends everything and gives what it said: for the message of a test that has failed already."""
        newest = {(n["rank"], n["attempt"]): n for n in self.notes()}
        processes.kill_all(processes.of_directory(self.directory))
        said = [process.communicate(timeout=10)[1].decode("utf-8", "replace") for process in self.started]
        return "\n".join([*map(str, newest.values()), *(f"run {i}:\n{text}" for i, text in enumerate(said))])

    def everyone(self):
        """All processes of the test's runs, and stores that have lost their keeper (they name no directory)."""
        found = processes.of_directory(self.directory)
        for pid in processes.all_pids():
            if processes.program(pid) != "holdfast-tcp-store" or not processes.alive(pid):
                continue
            keeper = processes.parent(pid)
            if processes.program(keeper) != "holdfast-keeper" or keeper in found:
                found.append(pid)
        return found

    def stores(self):
        return [pid for pid in self.everyone() if processes.program(pid) == "holdfast-tcp-store"]

    def assert_nothing_left(self):
        # A process that lost its keeper dies a moment after it.
        left = processes.wait_gone(self.everyone(), 2)
        self.assertEqual([processes.describe(pid) for pid in left], [], "processes left behind")

    def wait_nothing_left(self, deadline_s):
        processes.wait_until(lambda: not self.everyone() and not self.state_directories(), deadline_s,
                             lambda: [processes.describe(p) for p in self.everyone()] + self.state_directories())

    def daemon(self, pattern):
        """The one process of the test's runs whose program and arguments match."""
        found = [pid for pid in processes.of_directory(self.directory)
                 if re.search(pattern, " ".join(processes.command_line(pid)))]
        self.assertEqual(len(found), 1, pattern)
        return found[0]

    def supervisor(self, run):
        """The process between `holdfast run` and its daemons."""
        return processes.parent(self.daemon("holdfast-scheduler --state"))

    def state_directories(self):
        return [name for name in os.listdir(self.directory) if name.startswith("holdfast-run-")]
