# SPDX-License-Identifier: Apache-2.0
"""holdfast.dcp with a real torch.distributed.checkpoint (scripts/test --long pytorch): one process, then FSDP2 ranks
that save on two and load on one, two and three, asynchronously too, with damage and with a rank that dies in a save."""
import json
import os
import random
import subprocess
import tempfile
import unittest

SOURCE = os.environ["HOLDFAST_SOURCE_DIR"]
PYTHON = os.environ.get("HOLDFAST_TORCH_PYTHON")
SEED = int(os.environ.get("HOLDFAST_SEED", "11"))
DEADLINE_S = 400  # importing torch takes most of it on a busy machine
REASON = "HOLDFAST_TORCH_PYTHON names no Python with torch"
COMMIT = "holdfast-dcp.json"


@unittest.skipUnless(PYTHON, REASON)
class Checks(unittest.TestCase):
    def test_one_process(self):
        done = subprocess.run([PYTHON, "-B", os.path.join(SOURCE, "tests", "python", "torch_dcp_checks.py"), "-v"],
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
        self.assertEqual(done.returncode, 0, done.stderr[-8000:])
        self.assertRegex(done.stderr, r"Ran [1-9]\d* tests")
        for line in done.stderr.splitlines():
            if "skipped" in line:
                print(line)


@unittest.skipUnless(PYTHON, REASON)
class Ranks(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="holdfast_dcp_")
        self.addCleanup(directory.cleanup)
        self.directory = directory.name
        self.checkpoint = os.path.join(self.directory, "checkpoint")
        self.rounds = 0

    def start(self, verb, world):
        self.rounds += 1
        rendezvous = os.path.join(self.directory, f"rendezvous{self.rounds}")
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "LOCAL_WORLD_SIZE": str(world)}
        processes = []
        for rank in range(world):
            command = [PYTHON, "-B", "-W", "ignore", os.path.join(SOURCE, "tests", "python", "torch_dcp_rank.py"),
                       rendezvous, str(rank), str(world), self.checkpoint, verb]
            process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                       stderr=subprocess.PIPE, text=True)
            self.addCleanup(end, process)
            processes.append(process)
        return processes

    def run_ranks(self, verb, world):
        """What each rank said, in order."""
        said = []
        for process in self.start(verb, world):
            out, err = process.communicate(timeout=DEADLINE_S)
            self.assertEqual(process.returncode, 0, err[-4000:])
            said.append(json.loads(out))
        return said

    def assert_loads(self, digest, step, worlds):
        for world in worlds:
            for said in self.run_ranks("load", world):
                self.assertEqual(said, {"digest": digest, "plain": [step] * 5, "notes": {"seen": [step, "x"]}}, world)

    def assert_tidy(self):
        with open(os.path.join(self.checkpoint, COMMIT), "rb") as file:
            named = {entry["name"] for entry in json.loads(file.readline())["files"]}
        self.assertEqual(set(os.listdir(self.checkpoint)), named | {COMMIT})

    def test_saved_on_two_ranks_loaded_on_one_two_and_three(self):
        saved = self.run_ranks("save", 2)
        self.assertEqual(saved[0], saved[1])
        self.assert_loads(saved[0]["digest"], 3, (1, 2, 3))
        # Three ranks into the same path, in the background; what two had written is gone.
        again = self.run_ranks("async_save", 3)
        self.assertNotEqual(again[0], saved[0])
        self.assert_tidy()
        self.assert_loads(again[0]["digest"], 5, (2,))

    def test_a_rank_that_dies_in_a_save_leaves_the_checkpoint_of_before(self):
        saved = self.run_ranks("save", 2)
        survivor, victim = self.start("killed_save", 2)
        victim.communicate(timeout=DEADLINE_S)
        self.assertEqual(victim.returncode, -9)
        survivor.communicate(timeout=DEADLINE_S)
        self.assertNotEqual(survivor.returncode, 0)
        self.assertTrue([name for name in os.listdir(self.checkpoint) if name.endswith(".part")])
        self.assert_loads(saved[0]["digest"], 3, (1,))
        self.run_ranks("save", 2)
        self.assert_tidy()

    def test_damage_is_told_to_every_rank(self):
        self.run_ranks("save", 2)
        names = [name for name in os.listdir(self.checkpoint) if name.endswith(".data")]
        draw = random.Random(SEED)
        for name in (max(names, key=lambda n: os.path.getsize(os.path.join(self.checkpoint, n))), COMMIT):
            path = os.path.join(self.checkpoint, name)
            with open(path, "rb") as file:
                data = bytearray(file.read())
            at = draw.randrange(len(data))
            data[at] ^= 1 << draw.randrange(8)
            with open(path, "wb") as file:
                file.write(data)
            for said in self.run_ranks("load", 2):
                self.assertTrue(said["failed"], said)
                for text in said["failed"]:
                    self.assertRegex(text, f"^StateDamaged: .*{name}: .*digest")


def end(process):
    if process.poll() is None:
        process.kill()
    process.communicate()


if __name__ == "__main__":
    unittest.main()
