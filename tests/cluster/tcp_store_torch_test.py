# SPDX-License-Identifier: Apache-2.0
"""holdfast-tcp-store against the clients of a real PyTorch (scripts/test --long pytorch).

HOLDFAST_TORCH_PYTHON names a Python that has torch; without it every test is skipped.
"""
import os
import subprocess
import textwrap
import unittest

import processes
from holdfast_cluster import built_binaries

PYTHON = os.environ.get("HOLDFAST_TORCH_PYTHON")
DEADLINE_S = 240  # importing torch eight times on a busy machine

PRELUDE = """
import datetime, os, sys, threading, time
import torch.distributed as dist
host, port = "127.0.0.1", int(sys.argv[1])
def client(timeout_s=20):
    timeout = datetime.timedelta(seconds=timeout_s)
    return dist.TCPStore(host, port, is_master=False, timeout=timeout, wait_for_workers=False)
"""

METHODS = """
s = client()
s.set("a", "1"); assert s.get("a") == b"1"
assert s.add("n", 5) == 5 and s.add("n", -7) == -2 and s.get("n") == b"-2"
assert s.check(["a", "n"]) and not s.check(["a", "missing"])
assert s.compare_set("c", "", "first") == b"first" and s.compare_set("c", "x", "y") == b"first"
assert s.compare_set("c", "first", "second") == b"second"
assert s.compare_set("missing", "expected", "x") == b"expected" and not s.check(["missing"])
s.set("spaced", " 12x"); assert s.add("spaced", 1) == 13
s.append("l", "x"); s.append("l", "yz"); assert s.get("l") == b"xyz"
s.multi_set(["m1", "m2"], ["v1", "v2"]); assert s.multi_get(["m2", "m1"]) == [b"v2", b"v1"]
before = s.num_keys(); assert s.delete_key("m1") and not s.delete_key("m1") and s.num_keys() == before - 1
s.wait(["a"], datetime.timedelta(seconds=5))
began = time.monotonic()
try:
    s.wait(["never"], datetime.timedelta(milliseconds=300)); raise SystemExit("the wait did not time out")
except dist.DistStoreError:
    assert time.monotonic() - began < 5
threading.Timer(0.2, lambda other=client(): other.set("later", "from another client")).start()
assert s.get("later") == b"from another client"
s.set("after", "a timed out wait"); assert s.get("after") == b"a timed out wait"
big = b"x" * (7 << 20); s.set("big", big); assert s.get("big") == big
s.set("empty", ""); assert s.get("empty") == b""
p = dist.PrefixStore("p", s); p.set("k", "v"); assert p.get("k") == b"v" and s.get("p/k") == b"v"
if hasattr(s, "queue_push"):
    s.queue_push("q", "1"); s.queue_push("q", "2"); assert s.queue_len("q") == 2
    try:
        s.queue_pop("no such queue", False); raise SystemExit("an empty queue gave something")
    except dist.QueueEmptyError:
        pass
    assert s.queue_pop("q") == b"1" and s.queue_pop("q") == b"2" and s.queue_len("q") == 0
if hasattr(s, "list_keys"):
    assert "a" in s.list_keys()
if hasattr(s, "clone"):
    c = s.clone(); c.set("from clone", "1"); assert s.get("from clone") == b"1"
print("all good")
"""

BARRIER = """
stores = [client() for _ in range(3)]
if not hasattr(stores[0], "barrier"):
    print("all good"); raise SystemExit
try:
    stores[0].barrier("alone", 2, datetime.timedelta(milliseconds=300))
    raise SystemExit("the barrier did not time out")
except dist.DistStoreError:
    stores[0].set("after", "a timed out barrier")
threads = [threading.Thread(target=s.barrier, args=("b", 3, datetime.timedelta(seconds=20))) for s in stores]
[t.start() for t in threads]; [t.join() for t in threads]
print("all good")
"""

RANK = """
import torch
dist.init_process_group("gloo")
t = torch.full((1000,), float(dist.get_rank())); dist.all_reduce(t)
assert t[0].item() == sum(range(dist.get_world_size())), t[0]
dist.barrier(); dist.destroy_process_group()
print("all good")
"""


@unittest.skipUnless(PYTHON, "HOLDFAST_TORCH_PYTHON names no Python with torch")
class Torch(unittest.TestCase):
    def setUp(self):
        self.server = subprocess.Popen([os.path.join(built_binaries(), "holdfast-tcp-store"), "--bind", "127.0.0.1:0"],
                                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.port = int(self.server.stdout.readline())

    def tearDown(self):
        self.server.terminate()
        _, err = self.server.communicate(timeout=30)
        self.assertEqual((self.server.returncode, err), (0, ""))

    def start(self, script, **environment):
        return subprocess.Popen([PYTHON, "-c", PRELUDE + textwrap.dedent(script), str(self.port)], text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env={**os.environ, **environment})

    def assert_good(self, process):
        out, _ = process.communicate(timeout=DEADLINE_S * processes.PATIENCE)
        self.assertEqual(process.returncode, 0, out)
        self.assertIn("all good", out)

    def test_every_method_of_a_store(self):
        self.assert_good(self.start(METHODS))

    def test_a_barrier_of_the_server(self):
        self.assert_good(self.start(BARRIER))

    def test_eight_ranks_meet_through_env(self):
        common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(self.port), "WORLD_SIZE": "8", "OMP_NUM_THREADS": "1",
                  "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"}
        ranks = [self.start(RANK, RANK=str(rank), LOCAL_RANK=str(rank), **common) for rank in range(8)]
        for rank in ranks:
            self.assert_good(rank)


if __name__ == "__main__":
    unittest.main()
