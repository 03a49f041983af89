#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""scripts/quickstart in a fresh Debian 12 root: cold in under 30 minutes, again in under 2, equal bit for bit.

Needs root, debootstrap and a Debian mirror (the first one of this machine's apt sources).
"""
import json
import os
import shutil
import subprocess
import tempfile
import time
import unittest

import debian_root

SOURCE = os.environ["HOLDFAST_SOURCE_DIR"]
COLD_S_MAX = 30 * 60
AGAIN_S_MAX = 2 * 60
LEFT_OUT = ("build", ".git", ".cache", "__pycache__")
KEYS = {"job", "steps", "loss_first", "loss_last", "steps_lost", "noticed_ms", "first_step_ms", "checkpoint_stall_ms",
        "bitwise_equal"}

ENTER = """
set -e
mount --make-rprivate /
mount -t proc proc "$1/proc"
mount -t sysfs sysfs "$1/sys"
mount --rbind /dev "$1/dev"
mount -t tmpfs -o mode=1777 tmpfs "$1/dev/shm"
exec chroot "$1" /usr/bin/env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin TERM=dumb LANG=C.UTF-8 \
  PIP_CERT=/etc/holdfast-test-ca.crt PIP_DEFAULT_TIMEOUT=180 /bin/bash -c "$2"
"""


def missing():
    if os.geteuid() != 0:
        return "building a root file system needs root"
    return None if shutil.which("debootstrap") else "debootstrap is not installed (apt-get install debootstrap)"


@unittest.skipIf(missing(), missing())
class FreshDebian(unittest.TestCase):
    def setUp(self):
        self.root = tempfile.mkdtemp(prefix="holdfast_debian_", dir="/var/tmp")
        self.addCleanup(shutil.rmtree, self.root, ignore_errors=True)
        debian_root.make(self.root)
        shutil.copytree(SOURCE, os.path.join(self.root, "src"), symlinks=True, ignore=shutil.ignore_patterns(*LEFT_OUT))

    def inside(self, command, limit_s):
        """Runs a command in the root, with processes and mounts of its own; gives (output, seconds)."""
        started = time.monotonic()
        enter = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "/bin/bash", "-c", ENTER, "enter", self.root]
        done = subprocess.run(enter + [command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
                              timeout=limit_s, check=False)
        self.assertEqual(done.returncode, 0, done.stdout[-4000:])
        return done.stdout, time.monotonic() - started

    def check(self, output):
        last = json.loads(output.rstrip().splitlines()[-1])
        self.assertEqual(set(last), KEYS)
        self.assertIs(last["bitwise_equal"], True)
        return last

    def test_quickstart_cold_and_again(self):
        output, seconds = self.inside("/src/scripts/quickstart", COLD_S_MAX)
        self.check(output)
        print(f"cold: {seconds:.0f} s")
        output, seconds = self.inside("/src/scripts/quickstart", AGAIN_S_MAX)
        self.check(output)
        print(f"again: {seconds:.0f} s")


if __name__ == "__main__":
    program = unittest.main(exit=False, verbosity=2)
    if missing():
        print(f"every test was skipped: {missing()}")
    raise SystemExit(0 if program.result.wasSuccessful() else 1)
