#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""scripts/install-deps with a cache of its own and no network: what is refused, and that a second run does nothing."""
import os
import shutil
import subprocess
import tempfile
import unittest

SOURCE = os.environ["HOLDFAST_SOURCE_DIR"]
SUMS = os.path.join(SOURCE, "scripts", "lib", "wheels.sha256")
NOT_REACHABLE = {"PIP_INDEX_URL": "http://127.0.0.1:9/", "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/nonexistent"}


def wheels():
    with open(SUMS, encoding="ascii") as file:
        return [line.split() for line in file]


class InstallDeps(unittest.TestCase):
    def setUp(self):
        self.cache = tempfile.mkdtemp(prefix="holdfast_cache_")
        self.addCleanup(shutil.rmtree, self.cache, ignore_errors=True)
        os.mkdir(os.path.join(self.cache, "wheels"))

    def run_script(self, *arguments):
        environment = {**os.environ, **NOT_REACHABLE, "HOLDFAST_CACHE": self.cache}
        return subprocess.run([os.path.join(SOURCE, "scripts", "install-deps"), "--no-packages", *arguments],
                              env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60,
                              check=False)

    def target(self):
        version = next(name for _, name in wheels() if name.startswith("torch-")).split("-")[1]
        return os.path.join(self.cache, f"torch-{version}")

    def test_a_wheel_with_a_wrong_checksum_is_refused_and_nothing_unpacked(self):
        for expected, name in wheels():
            with self.subTest(name=name):
                path = os.path.join(self.cache, "wheels", name)
                with open(path, "wb") as file:
                    file.write(b"not a wheel")
                result = self.run_script()
                self.assertEqual(result.returncode, 1)
                self.assertEqual(len(result.stderr.strip().splitlines()), 1, result.stderr)
                for part in (path, expected, "wrong checksum", "Delete the file"):
                    self.assertIn(part, result.stderr)
                self.assertFalse(os.path.exists(self.target()))
                os.unlink(path)

    def test_a_download_that_fails_says_what_and_leaves_nothing(self):
        result = self.run_script()
        self.assertEqual(result.returncode, 1)
        self.assertIn(wheels()[0][1], result.stderr)
        self.assertEqual(os.listdir(os.path.join(self.cache, "wheels")), [])
        self.assertFalse(os.path.exists(self.target()))

    def test_what_is_unpacked_is_not_unpacked_again(self):
        os.mkdir(self.target())
        shutil.copy(SUMS, os.path.join(self.target(), ".complete"))
        result = self.run_script()
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertEqual(os.listdir(self.target()), [".complete"])

    def test_unknown_options_are_refused(self):
        result = self.run_script("--fast")
        self.assertEqual(result.returncode, 2)
        self.assertIn("--fast", result.stderr)


if __name__ == "__main__":
    unittest.main()
