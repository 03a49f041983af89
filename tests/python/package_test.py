#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""scripts/package: the wheel is whole, the same each time, installs without a network and works from where it is."""
import base64
import hashlib
import importlib.util
import os
import subprocess
import sys
import tempfile
import unittest
import zipfile

SOURCE, BUILD = os.environ["HOLDFAST_SOURCE_DIR"], os.environ["HOLDFAST_BUILD_DIR"]
LIBRARY = os.path.join(BUILD, "lib", "libholdfast.so.1")
TIMEOUT_S = 300


def run(command, **environment):
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("HOLDFAST_", "PYTHON"))}
    return subprocess.run(command, env={**clean, **environment}, stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, timeout=TIMEOUT_S, check=False)


class Wheel(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="holdfast_wheel_")
        self.addCleanup(directory.cleanup)
        self.directory = directory.name

    def package(self, name="dist", library=LIBRARY):
        return run([sys.executable, "-B", os.path.join(SOURCE, "scripts", "package"),
                    os.path.join(self.directory, name), "--library", library])

    def wheel(self, name="dist"):
        done = self.package(name)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout.splitlines()[-1]

    def install(self, wheel):
        """By pip where there is one, else as pip would for files of no build: unpacked."""
        target = os.path.join(self.directory, "site")
        if importlib.util.find_spec("pip") is not None:
            done = run([sys.executable, "-m", "pip", "install", "--no-index", "--no-deps", "--no-compile", "--quiet",
                        "--disable-pip-version-check", "--target", target, wheel])
            self.assertEqual(done.returncode, 0, done.stderr)
        else:
            with zipfile.ZipFile(wheel) as file:
                file.extractall(target)
        return target

    def test_every_file_is_recorded_with_its_digest(self):
        with zipfile.ZipFile(self.wheel()) as wheel:
            self.assertIsNone(wheel.testzip())
            names = wheel.namelist()
            info = next(name for name in names if name.endswith("/RECORD")).rpartition("/")[0]
            rows = [line.split(",") for line in wheel.read(info + "/RECORD").decode().splitlines()]
            self.assertEqual(sorted(row[0] for row in rows), sorted(names))
            for path, digest, size in rows[:-1]:
                data = wheel.read(path)
                wanted = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
                self.assertEqual((digest, int(size)), ("sha256=" + wanted, len(data)), path)
            with open(LIBRARY, "rb") as file:
                self.assertEqual(wheel.read("holdfast/libholdfast.so.1"), file.read())
            sources = {"holdfast/" + name for name in os.listdir(os.path.join(SOURCE, "client", "python", "holdfast"))
                       if name.endswith(".py")}
            self.assertIn("holdfast/dcp.py", sources)
            self.assertLessEqual(sources, set(names))
            self.assertIn("Requires-Python: >=3.9\n", wheel.read(info + "/METADATA").decode())

    def test_the_same_bytes_each_time(self):
        with open(self.wheel("one"), "rb") as one, open(self.wheel("two"), "rb") as two:
            self.assertEqual(one.read(), two.read())

    def test_installed_it_finds_its_own_library(self):
        target = self.install(self.wheel())
        code = "import holdfast\nholdfast.init(1)"
        done = run([sys.executable, "-B", "-c", code], PYTHONPATH=target, HOLDFAST_SOCKET="/no/such/sock",
                   HOLDFAST_ATTEMPT="1")
        self.assertEqual(done.returncode, 1)
        # The library's own words: it was loaded.
        self.assertIn("HOLDFAST_SOCKET=/no/such/sock: No such file or directory", done.stderr)
        done = run([sys.executable, "-B", "-c", code + "\nprint(holdfast.__file__)"], PYTHONPATH=target)
        self.assertEqual((done.returncode, done.stdout),
                         (0, os.path.join(target, "holdfast", "__init__.py") + "\n"), done.stderr)

    def test_a_wrong_library_is_refused(self):
        for library, part in ((os.devnull, "is no libholdfast"), ("/no/such.so", "No such file")):
            done = self.package(library=library)
            self.assertEqual(done.returncode, 1)
            self.assertIn(part, done.stderr)
        self.assertFalse(os.path.exists(os.path.join(self.directory, "dist")))


if __name__ == "__main__":
    unittest.main()
