# SPDX-License-Identifier: Apache-2.0
"""Causes found while ranks live, in a script that knows nothing of Holdfast: observed, acted on, and what the ledger
says. Each run first works for a while, so that its past can be learned."""
import json
import os
import re
import select
import signal
import subprocess
import time
import unittest

import processes
from holdfast_cluster import built_binaries, json_lines
from run_case import DEADLINE_S, HERE, RunCase

LEARN_S = 14  # 20 pauses of half a second are needed

# Works in small pieces, then does what its argument says, then works on.
SCRIPT = f"""
import os, subprocess, sys, time
sys.path.insert(0, {HERE!r})
import store_rank
rank, first = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
store = store_rank.Store(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))

def work(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        busy = time.monotonic() + 0.03
        while time.monotonic() < busy:
            pass
        time.sleep(0.05)

def loader():  # hangs until somebody writes into the pipe
    child = os.fork()
    if child == 0:
        with open(sys.argv[2], "rb") as data:
            data.read(1)
        os._exit(0)
    print("loader", child, "of", os.getpid(), flush=True)
    os.waitpid(child, 0)

work({LEARN_S})
if first and sys.argv[1] == "hang":
    if rank == "0":
        loader()
        store.set(b"done", b"1")
    else:
        store.wait(b"done")
    # A hang of some five seconds was seen now, so that the limit is far below this. All pause together, and then
    # one waits for a child that works: healthy both.
    time.sleep(12)
    if rank == "0":
        subprocess.run([sys.executable, "-c", "import itertools, time; end = time.monotonic() + 12; "
                        "any(time.monotonic() > end for _ in itertools.count())"], check=True)
        store.set(b"evaluated", b"1")
    else:
        store.wait(b"evaluated")
work(1)
print("ends", flush=True)
"""


class ObserveCase(RunCase):
    def setUp(self):
        super().setUp()
        self.ledger = os.path.join(self.directory, "ledger.jsonl")
        self.fifo = os.path.join(self.directory, "data")
        # A job chooses its names: this one is no text, and must spoil neither a message nor a terminal.
        os.mkfifo(os.fsencode(self.directory) + b"/real\xff\n")
        os.symlink(os.fsencode(self.directory) + b"/real\xff\n", self.fifo)
        self.script = os.path.join(self.directory, "work.py")
        with open(self.script, "w", encoding="utf-8") as file:
            file.write(SCRIPT)
        # Open for writing in this process, so that the loader's open returns and its read is what waits.
        self.writer = os.open(self.fifo, os.O_RDWR)
        self.addCleanup(os.close, self.writer)
        self.told = ""

    def run_script(self, *arguments, flags=()):
        return self.start("--standby", "none", "--nproc-per-node", 2, *flags, self.script, *arguments, self.fifo,
                          environment={"HOLDFAST_LEDGER": self.ledger})

    def wait_told(self, run, pattern, deadline_s=DEADLINE_S):
        """Reads the run's stderr until it says so."""
        end = time.monotonic() + deadline_s * processes.PATIENCE
        while not re.search(pattern, self.told):
            if not select.select([run.stderr.fileno()], [], [], max(0, end - time.monotonic()))[0]:
                self.fail(f"no {pattern!r} within {deadline_s} s in {self.told!r}")
            more = os.read(run.stderr.fileno(), 65536)
            if not more:
                self.fail(f"the run ended without {pattern!r} in {self.told!r}")
            self.told += more.decode("utf-8", "replace")

    def report(self, *arguments):
        done = subprocess.run([os.path.join(built_binaries(), "holdfast"), "ledger", "--runs", *arguments],
                              stdin=subprocess.DEVNULL, capture_output=True, timeout=DEADLINE_S, check=False,
                              env={**os.environ, "HOLDFAST_LEDGER": self.ledger})
        return done.returncode, done.stdout.decode(), done.stderr.decode()


class Observe(ObserveCase):
    def test_a_hang_in_a_loader_is_named_and_left_alone_and_the_ledger_says_that_it_went_on(self):
        run = self.run_script("hang")
        loader = re.search(r"loader (\d+) of (\d+)", self.read_until(run, r"loader \d+ of \d+\n"))
        child, begun = int(loader[1]), time.monotonic()
        self.wait_told(run, rf"rank 0 on n0 waits for its child {child} \(\S+\), which waits in read of "
                            rf"{re.escape(self.directory)}/real\?\? \(descriptor \d+\); observed: would stop all "
                            r"ranks and start them again once the time lost exceeds what that costs, [\d.]+ s "
                            r"\(9\d % sure\)\n")
        # The limit is three seconds at least; two looks, a beat and what is told take the rest.
        self.assertLess(time.monotonic() - begun, 13 * processes.PATIENCE)
        os.write(self.writer, b"x")
        self.wait_told(run, "it went on by itself")
        # What follows in the script is healthy: nothing more is found, although the watcher has shown that it sees.
        code, _, err = self.finish(run)
        self.assertEqual(code, 0, err)
        self.assertNotIn("attempt 2", self.told + err)
        self.assertEqual((self.told + err).count("; observed: would stop"), 1, self.told + err)
        self.assertIn("holdfast: to see more: `holdfast look j-1 --endpoint unix:", self.told)
        [entry] = json_lines(self.ledger)
        self.assertEqual((entry["cause"], entry["fault_class"], entry["ranks"], entry["outcome"], entry["mode"]),
                         ("hang", "DATA_STUCK", [0], "OUTCOME_WENT_ON", "CAUSE_MODE_OBSERVE"))
        self.assertIn("no work (CPU, I/O) for", entry["evidence"])
        self.assertGreaterEqual(int(entry["cost_ms"]), 20000)
        code, out, _ = self.report("--since", "1h")
        self.assertEqual(code, 0)
        self.assertIn("hang: 1 found; of those that were due 0 right, 0 wrong; 1 not due", out)
        code, out, _ = self.report("--json")
        self.assertEqual(json.loads(out), entry)
        self.assert_nothing_left()

    def test_a_stopped_rank_is_left_alone_until_told(self):
        state = os.path.join(self.directory, "s")
        run = self.run_script("none", flags=("--state", state))
        rank = processes.wait_until(
            lambda: [p for p in processes.of_directory(self.directory)
                     if processes.command_line(p)[-2:-1] == ["none"]
                     and processes.environment(p).get("RANK") == "1"], DEADLINE_S, "rank 1")[0]
        os.kill(rank, signal.SIGSTOP)
        self.wait_told(run, r"rank 1 on n0 was stopped \(SIGSTOP or a freezer\); observed: would")
        self.assertEqual(processes.state(rank), "T")
        done = subprocess.run([os.path.join(built_binaries(), "holdfast"), "modes", "j-1", "stopped=act", "--state",
                               state], stdin=subprocess.DEVNULL, capture_output=True, timeout=DEADLINE_S, check=False)
        self.assertEqual((done.returncode, done.stderr), (0, b"j-1: stopped=act\n"))
        self.wait_told(run, "attempt 2 starts")
        code, out, err = self.finish(run)
        self.assertEqual((code, out.count("ends")), (0, 2), err)
        [entry] = json_lines(self.ledger)
        self.assertEqual((entry["cause"], entry["outcome"], entry["mode"]),
                         ("stopped", "OUTCOME_ACTED", "CAUSE_MODE_ACT"))
        self.assert_nothing_left()


class Act(ObserveCase):
    def test_a_hang_is_recovered_once_that_costs_less_than_waiting(self):
        run = self.run_script("hang", flags=("--modes", "hang=act"))  # what it does not name stays observed
        self.read_until(run, r"loader \d+ of \d+\n")
        begun = time.monotonic()
        self.wait_told(run, "attempt 2 starts", 120)
        self.assertGreater(time.monotonic() - begun, 25, "acting before it pays is wrong, too")
        self.assertIn("which waits in read of", self.told)
        code, out, err = self.finish(run)
        self.assertEqual(code, 0, err)
        self.assertEqual(out.count("ends"), 2)
        [entry] = json_lines(self.ledger)
        self.assertEqual((entry["outcome"], entry["mode"]), ("OUTCOME_ACTED", "CAUSE_MODE_ACT"))
        self.assert_nothing_left()


if __name__ == "__main__":
    unittest.main()
