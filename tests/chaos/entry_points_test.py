#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What quickstart, bench and chaos compute from what they saw, and how they refuse wrong usage. Nothing is started."""
import array
import math
import os
import struct
import subprocess
import sys
import tempfile
import types
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
SCRIPTS = os.path.join(ROOT, "scripts")
sys.path.insert(1, os.path.join(SCRIPTS, "lib"))
import bench_recovery  # noqa: E402
import build  # noqa: E402
import chaos_case  # noqa: E402
import drill  # noqa: E402
import quickstart  # noqa: E402

GOOD = {"loss_first": 7.0, "loss_last": 5.0, "bitwise_equal": True}


def call(*command, **environment):
    # An empty directory of binaries: nothing may be installed or built by these calls.
    with tempfile.TemporaryDirectory() as empty:
        return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, cwd="/",
                              env={**os.environ, "HOLDFAST_BIN": empty, **environment})


class Usage(unittest.TestCase):
    def test_unknown_kind_and_bench_are_exit_2_with_the_list(self):
        chaos = call(os.path.join(SCRIPTS, "chaos"), "--kind", "rank-sigkil")
        self.assertEqual(chaos.returncode, 2)
        self.assertIn("rank-sigkil: unknown; known: rank-sigkill, rank-sigstop", chaos.stderr)
        bench = call(os.path.join(SCRIPTS, "bench"), "recover")
        self.assertEqual(bench.returncode, 2)
        self.assertIn("known: recovery", bench.stderr)

    def test_lists(self):
        kinds = call(os.path.join(SCRIPTS, "chaos"), "--kind", "list")
        self.assertEqual((kinds.returncode, kinds.stdout.split()[0]), (0, "rank-sigkill"))
        self.assertEqual(len(kinds.stdout.split()), 6)
        self.assertTrue(call(os.path.join(SCRIPTS, "bench"), "list").stdout.startswith("recovery"))

    def test_missing_programs_are_named(self):
        for script in ("quickstart", "chaos", "bench"):
            done = call(os.path.join(SCRIPTS, script))
            self.assertEqual(done.returncode, 1, script)
            self.assertRegex(done.stderr, r"error: HOLDFAST_BIN=\S+ has no holdfast, ")

    def test_keep_does_not_mix_with_what_is_there(self):
        done = call(os.path.join(SCRIPTS, "quickstart"), "--keep", SCRIPTS)
        self.assertEqual(done.returncode, 2)
        self.assertIn("no empty directory", done.stderr)

    def test_peers_without_their_scripts_are_refused(self):
        done = call(os.path.join(SCRIPTS, "bench"), "recovery", HOLDFAST_PEERS=sys.executable,
                    HOLDFAST_PEERS_DIR="/nowhere")
        self.assertEqual(done.returncode, 1)
        self.assertIn("has no recovery_peers.py", done.stderr)


class Quickstart(unittest.TestCase):
    def test_judge(self):
        self.assertEqual(quickstart.judge(GOOD, 6.0), [])
        self.assertIn("differs", quickstart.judge({**GOOD, "bitwise_equal": False}, 6.0)[0])
        self.assertIn("0.8 of loss_first", quickstart.judge({**GOOD, "loss_first": 6.0}, 6.0)[0])
        self.assertIn("unigram entropy", quickstart.judge(GOOD, 5.0)[0])
        self.assertEqual(len(quickstart.judge({**GOOD, "loss_last": math.nan}, 6.0)), 2)

    def test_unigram_entropy(self):
        with tempfile.TemporaryDirectory() as folder:
            prefix = os.path.join(folder, "t")
            with open(prefix + ".bin", "wb") as file:
                file.write(array.array("H", [5, 5, 5, 5, 9, 9, 7, 8]).tobytes())
            with open(prefix + ".idx", "wb") as file:
                file.write(struct.pack("<9sQB", b"MMIDIDX\0\0", 1, 8))
            self.assertAlmostEqual(quickstart.unigram_entropy(prefix), 1.75 * math.log(2))
            with open(prefix + ".idx", "wb") as file:
                file.write(b"x" * 18)
            self.assertRaises(build.StepFailed, quickstart.unigram_entropy, prefix)

    def test_stall_is_the_slowest_ranks(self):
        stalls = quickstart.Stalls()
        step = lambda number, stall: types.SimpleNamespace(step=number, snapshot_stall_s=stall)  # noqa: E731
        steps = {0: [step(1, 0.001), step(2, 0)], 1: [step(1, 0.003)]}
        stalls.look(types.SimpleNamespace(recorded_steps=lambda job: steps), 1)
        self.assertEqual(stalls.typical_ms(), 3.0)


class StepLog(unittest.TestCase):
    ROWS = [{"attempt": 1, "step": 1}, {"attempt": 1, "step": 2}, {"attempt": 1, "step": 3}, {"attempt": 2, "step": 3},
            {"attempt": 2, "step": 4}]

    def test_steps_done_again(self):
        self.assertEqual(drill.redone_steps(self.ROWS), 1)
        self.assertEqual(chaos_case.steps_lost(self.ROWS, 1), 1)
        self.assertEqual(chaos_case.steps_lost(self.ROWS[:3], 1), 0)
        self.assertEqual(chaos_case.steps_lost(self.ROWS[:3] + self.ROWS[4:], 1), 0)


class Bench(unittest.TestCase):
    @staticmethod
    def measured():
        def run(seconds, redone=1, memory=True):
            return types.SimpleNamespace(seconds=seconds, step_s=0.25, redone=redone, from_memory=memory)
        return {"sigkill": [run(0.9), run(0.7), run(0.8, 2, False)], "sigstop": [run(1.9), run(1.5)]}

    def peers(self, seconds):
        peers = bench_recovery.PeerRuns(False)
        peers.seconds = seconds
        peers.failed = {("kill", "torchrun"): 3}
        return peers

    def test_without_peers(self):
        lines = list(bench_recovery.lines(self.measured(), self.peers({})))
        self.assertEqual([line["metric"] for line in lines], ["sigkill_to_step_s", "sigstop_to_step_s"])
        first = lines[0]
        self.assertEqual([first[key] for key in ("bench", "case", "value", "unit", "runs", "low", "high", "against",
                                                 "against_value")],
                         ["recovery", "sigkill", 0.8, "s", 3, 0.7, 0.9, None, None])
        self.assertEqual((first["step_s"], first["redone_steps"], first["redone_steps_max"], first["from_memory"]),
                         (0.25, 1, 2, 2))
        self.assertEqual(lines[1]["value"], 1.7)

    def test_the_fastest_peer_comes_last(self):
        lines = list(bench_recovery.lines(self.measured(), self.peers({
            ("kill", "ft_launcher(heartbeat 10 s)"): [3.0, 4.0, 3.5], ("kill", "torchrun"): [9.0],
            ("hang", "torchft"): [5.0]})))
        self.assertEqual([(line["case"], line["against"], line["against_value"]) for line in lines],
                         [("sigkill", "torchrun", 9.0), ("sigkill", "ft_launcher(heartbeat 10 s)", 3.5),
                          ("sigstop", "torchft", 5.0)])
        self.assertEqual((lines[0]["against_runs"], lines[0]["against_failed"]), (1, 3))

    def test_step_time_leaves_the_first_step_out(self):
        steps = [types.SimpleNamespace(step=step, done_s=done)
                 for step, done in ((1, 0.0), (3, 9.5), (2, 9.0), (4, 10.1))]
        self.assertAlmostEqual(bench_recovery.step_time(steps), 0.55)


if __name__ == "__main__":
    program = unittest.main(exit=False, verbosity=1)
    sys.exit(0 if program.result.wasSuccessful() else 1)
