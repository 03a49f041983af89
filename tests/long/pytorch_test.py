# SPDX-License-Identifier: Apache-2.0
"""The examples under `holdfast run` with faults in them, on a real PyTorch (scripts/test --long pytorch).

Each is run undisturbed once and then with ranks killed at steps drawn from a seed; the parameters at the end must be
the same.
"""
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import unittest
import zipfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "cluster"))
import processes  # noqa: E402
from cluster_case import temporary_directory  # noqa: E402
from holdfast_cluster import built_binaries  # noqa: E402

PYTHON = os.environ.get("HOLDFAST_TORCH_PYTHON")
EXAMPLES = os.path.join(os.environ["HOLDFAST_SOURCE_DIR"], "examples")
STEPS, RANKS, KILLS = 60, 2, 5
DEADLINE_S = 300


class Run:
    """One `holdfast run` of an example; its output is followed while it comes."""

    def __init__(self, example, directory, site):
        self.lines = []
        self._changed = threading.Condition()
        self.process = subprocess.Popen(
            [os.path.join(built_binaries(), "holdfast"), "run", f"--nproc-per-node={RANKS}",
             os.path.join(EXAMPLES, example), "--directory", os.path.join(directory, "ckpt"), "--steps", str(STEPS)],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
            env={**os.environ, "TMPDIR": directory, "PYTHON_EXEC": PYTHON, "HF_HUB_OFFLINE": "1",
                 "PYTHONPATH": os.pathsep.join(filter(None, [site, os.environ.get("PYTHONPATH")]))})
        self._thread = threading.Thread(target=self._follow)
        self._thread.start()

    def _follow(self):
        for line in self.process.stdout:
            with self._changed:
                self.lines.append(line.rstrip("\n"))
                self._changed.notify_all()

    def wait_line(self, wanted, after=0):
        """The index of the first line at or behind `after` that matches."""
        with self._changed:
            def found():
                return next((i for i in range(after, len(self.lines)) if re.search(wanted, self.lines[i])), None)
            if not self._changed.wait_for(lambda: found() is not None or self.process.poll() is not None, DEADLINE_S):
                raise TimeoutError(f"no line {wanted!r} in\n" + "\n".join(self.lines[-30:]))
            if found() is None:
                raise AssertionError(f"it ended without a line {wanted!r}:\n" + "\n".join(self.lines[-30:]))
            return found()

    def finish(self):
        self.process.wait(DEADLINE_S)
        self._thread.join()
        self.process.stdout.close()
        return self.process.returncode

    def digest(self):
        found = [line.split()[-1] for line in self.lines if " digest " in line]
        return found[-1] if found else None


@unittest.skipUnless(PYTHON, "HOLDFAST_TORCH_PYTHON names no Python with torch")
class Examples(unittest.TestCase):
    def install_package(self, directory):
        """The wheel of `holdfast` of this build, unpacked: nothing of ours reaches a rank through HOLDFAST_*."""
        done = subprocess.run(
            [sys.executable, "-B", os.path.join(os.path.dirname(EXAMPLES), "scripts", "package"), directory,
             "--library", os.path.join(os.environ["HOLDFAST_BUILD_DIR"], "lib", "libholdfast.so.1")],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=DEADLINE_S, check=True)
        with zipfile.ZipFile(done.stdout.splitlines()[-1]) as wheel:
            wheel.extractall(os.path.join(directory, "site"))
        return os.path.join(directory, "site")

    def rank_process(self, directory, rank):
        """Below the keeper are the rank and, two seconds after its start, its standby: the younger of the two."""
        pids = [pid for pid in processes.of_directory(directory)
                if processes.environment(pid).get("RANK") == str(rank)
                and os.path.basename(processes.command_line(processes.parent(pid))[0]) == "holdfast-keeper"]
        self.assertIn(len(pids), (1, 2), [processes.describe(pid) for pid in pids])
        return min(pids, key=processes.start_ticks)

    def run_with_kills(self, example, kills):
        directory = temporary_directory()
        self.addCleanup(shutil.rmtree, directory, ignore_errors=True)
        self.addCleanup(lambda: processes.kill_all(processes.of_directory(directory)))
        run = Run(example, directory, self.install_package(directory))
        draw, seen = random.Random(1), 0
        for _ in range(kills):
            victim = draw.randrange(RANKS)
            # A step of the running attempt: behind the one at which the last kill struck.
            seen = run.wait_line(rf"^{victim}\| step \d*{draw.randrange(10)} ", seen)
            os.kill(self.rank_process(directory, victim), signal.SIGKILL)
            seen = run.wait_line(rf"holdfast: rank {victim} on n0 ended with signal 9", seen)
            seen = run.wait_line(r"holdfast: attempt \d+ starts", seen)
        code = run.finish()
        self.assertEqual(code, 0, "\n".join(run.lines[-40:]))
        self.assertEqual([processes.describe(pid) for pid in processes.of_directory(directory)], [])
        self.assertEqual(sum("starts" in line and line.startswith("holdfast: attempt") for line in run.lines), kills)
        self.lines = run.lines
        return run.digest()

    def check_same_end(self, example):
        """However often its ranks are killed, it ends with the bits of an undisturbed run."""
        undisturbed = self.run_with_kills(example, 0)
        self.assertIsNotNone(undisturbed)
        self.assertEqual(self.run_with_kills(example, KILLS), undisturbed)

    def check_goes_on_from_memory(self, example):
        """As above, and no step of the past is done again."""
        self.check_same_end(example)
        self.assertEqual(sum(re.match(r"0\| resumed from step ", line) is not None for line in self.lines), KILLS)
        done = [[int(found[1]) for found in (re.match(rf"{rank}\| step (\d+) ", line) for line in self.lines) if found]
                for rank in range(RANKS)]
        for steps in done:
            self.assertLessEqual(len(steps), STEPS + 2 * KILLS, steps)

    def need(self, *packages):
        found = subprocess.run([PYTHON, "-c", "import importlib.util, sys\n"
                                "print(*(n for n in sys.argv[1:] if importlib.util.find_spec(n) is None))", *packages],
                               stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=DEADLINE_S, check=True)
        if found.stdout.strip():
            self.skipTest(f"{PYTHON} has no {found.stdout.strip()}")

    def test_three_lines(self):
        self.check_goes_on_from_memory("three_lines/train.py")

    def test_fsdp2(self):
        self.check_goes_on_from_memory("fsdp2/train.py")

    def test_hf_trainer(self):
        self.need("transformers", "accelerate")
        self.check_goes_on_from_memory("hf_trainer/train.py")

    def test_lightning(self):
        self.need("lightning")
        self.check_goes_on_from_memory("lightning/train.py")

    def test_ddp_with_dcp(self):
        self.check_same_end("ddp/train.py")


if __name__ == "__main__":
    unittest.main()
