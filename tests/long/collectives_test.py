# SPDX-License-Identifier: Apache-2.0
"""torch.distributed's collectives in the recorders of live ranks, seen from outside (scripts/test --long pytorch):
which operation a rank hangs in, and which rank has not begun it."""
import os
import subprocess
import sys
import unittest

SOURCE, BUILD = os.environ["HOLDFAST_SOURCE_DIR"], os.environ["HOLDFAST_BUILD_DIR"]
sys.path.insert(0, os.path.join(SOURCE, "tests", "cluster"))
import processes  # noqa: E402
import recorders  # noqa: E402
from cluster_case import ClusterCase, main  # noqa: E402

PYTHON = os.environ.get("HOLDFAST_TORCH_PYTHON")
DEADLINE_S = 400  # importing torch takes most of it on a busy machine
REASON = "HOLDFAST_TORCH_PYTHON names no Python with torch"
STEPS, BUCKET_BYTES = 3, 104 * 4  # of collectives_rank.py: a layer of 25 x 4 and its bias


@unittest.skipUnless(PYTHON, REASON)
class Checks(unittest.TestCase):
    def test_hooks_in_one_process(self):
        done = subprocess.run([PYTHON, "-B", os.path.join(SOURCE, "tests", "python", "collectives_checks.py")],
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
        self.assertEqual(done.returncode, 0, done.stderr[-8000:])
        self.assertRegex(done.stderr, r"Ran [1-9]\d* tests")


@unittest.skipUnless(PYTHON, REASON)
class Live(ClusterCase):
    NODES, GPUS = 1, 2

    def start(self, mode):
        spec = {"name": mode, "nodes": 1, "gpus_per_node": 2, "fence": "commit", "restarts_max": 0,
                "environment": {"PYTHONPATH": os.path.join(SOURCE, "client", "python"), "PYTHONDONTWRITEBYTECODE": "1",
                                "OMP_NUM_THREADS": "1",
                                "HOLDFAST_LIBRARY": os.path.join(BUILD, "lib", "libholdfast.so.1")},
                "command": [PYTHON, os.path.join(SOURCE, "tests", "cluster", "collectives_rank.py"), self.directory,
                            mode]}
        return self.cluster.submit(spec)

    def let_go(self):
        with open(os.path.join(self.directory, "go"), "w", encoding="utf-8"):
            pass

    def wait_stuck(self, job):
        """The recorders once rank 0 waits in an all_reduce behind the send, and rank 1 has received that."""
        def stuck():
            seen = self.cluster.collectives(job)
            if len(seen) < 2:
                return None
            received = [o for o in seen[1].operations if o.kind == "recv" and o.outcome == "finished"]
            sent = [o for o in seen[0].operations if o.kind == "send" and o.outcome == "finished"]
            return seen if received and sent and [o.kind for o in seen[0].running] == ["all_reduce"] else None
        return processes.wait_until(stuck, DEADLINE_S, "rank 0 in an all_reduce", 0.05)

    def assert_rank_1_is_waited_for(self, seen):
        operation = seen[0].running[0]
        group = seen[0].groups[operation.group]
        self.assertEqual((operation.number, operation.bytes, group.size, group.ranks), (2, 4000, 2, (0, 1)))
        key = group.key
        self.assertEqual({rank: one.counts(key)[:2] for rank, one in seen.items()}, {0: (2, 1), 1: (1, 1)})
        self.assertEqual(recorders.behind(seen, key), {1: 1})
        self.assertEqual(seen[1].running, [])
        ends = [(o.kind, o.peer, o.number) for rank in (0, 1) for o in seen[rank].operations if o.kind in
                ("send", "recv")]
        self.assertEqual(ends, [("send", 1, 1), ("recv", 0, 1)])

    def test_who_is_waited_for_and_what_ddp_did(self):
        job = self.start("hooks")
        seen = self.wait_stuck(job)
        self.assert_rank_1_is_waited_for(seen)
        for one in seen.values():
            buckets = [o for o in one.operations if o.kind == "all_reduce" and o.bytes == BUCKET_BYTES]
            self.assertEqual([o.step for o in buckets], list(range(1, STEPS + 1)))
            self.assertEqual({(o.outcome, o.dtype) for o in buckets}, {("finished", 1)})
            self.assertTrue(all(o.begin_s <= o.end_s for o in buckets))
            self.assertEqual(one.groups[0].ranks, (0, 1))
            self.assertEqual(one.groups[0].collectives, seen[0].groups[0].collectives)
        self.let_go()
        self.cluster.wait_state(job, "DONE", DEADLINE_S)

    def test_without_hooks_of_process_groups(self):
        job = self.start("methods")
        self.assert_rank_1_is_waited_for(self.wait_stuck(job))
        self.let_go()
        self.cluster.wait_state(job, "DONE", DEADLINE_S)


if __name__ == "__main__":
    main()
