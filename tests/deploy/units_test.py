#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The systemd units: systemd-analyze verify has nothing to say, and what must never be lost from them is there."""
import os
import shutil
import subprocess
import tempfile
import unittest

SOURCE = os.environ["HOLDFAST_SOURCE_DIR"]
UNITS = ("holdfast-scheduler.service", "holdfast-agent.service")
PROGRAM = "/bin/true"  # stands for a binary that is not installed here


def unit_text(name):
    with open(os.path.join(SOURCE, "deploy", "systemd", name), encoding="utf-8") as file:
        return file.read()


def settings(text):
    """{key: [values]} of a unit file, continued lines joined."""
    found = {}
    for line in text.replace("\\\n", "").splitlines():
        key, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(key, []).append(value)
    return found


def complaints(text, name):
    """What systemd-analyze verify says of a unit, its program replaced by one that exists."""
    with tempfile.TemporaryDirectory(prefix="holdfast_units_") as folder:
        path = os.path.join(folder, name)
        with open(path, "w", encoding="utf-8") as file:
            for program in ("holdfast-scheduler", "holdfast-agent"):
                text = text.replace(f"ExecStart=/usr/bin/{program}", f"ExecStart={PROGRAM}")
            file.write(text)
        done = subprocess.run(["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", path],
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False)
        found = [line for line in done.stderr.splitlines() if name in line]
        return found or ([done.stderr] if done.returncode != 0 else [])


class Units(unittest.TestCase):
    @unittest.skipUnless(shutil.which("systemd-analyze"), "systemd-analyze is not installed")
    def test_verify_is_clean_and_would_not_be(self):
        for name in UNITS:
            with self.subTest(name=name):
                self.assertEqual(complaints(unit_text(name), name), [])
                for right, wrong in (("Restart=", "Restrat="), ("ExecStart=/usr/bin", "ExecStart=/nowhere")):
                    self.assertNotEqual(complaints(unit_text(name).replace(right, wrong), name), [])

    def test_both_are_watched_and_started_again(self):
        for name in UNITS:
            values = settings(unit_text(name))
            self.assertEqual(values["Type"], ["notify"])
            self.assertEqual(values["Restart"], ["always"])
            self.assertEqual(values["StartLimitIntervalSec"], ["0"])
            self.assertTrue(values["WatchdogSec"])

    def test_stopping_the_agent_leaves_keepers_and_ranks(self):
        values = settings(unit_text("holdfast-agent.service"))
        self.assertEqual(values["KillMode"], ["process"])
        self.assertEqual(values["Delegate"], ["yes"])
        for argument in ("--node", "--state", "--scheduler", "--jobs-dir", "--devices"):
            self.assertIn(argument, values["ExecStart"][0])


if __name__ == "__main__":
    unittest.main()
