#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""scripts/quickstart in a fresh Debian 12 root: cold in under 30 minutes, again in under 2, equal bit for bit.

Needs root, debootstrap and a Debian mirror (the first one of this machine's apt sources).
"""
import json
import os
import re
import shutil
import subprocess
import tempfile
import time
import unittest

SOURCE = os.environ["HOLDFAST_SOURCE_DIR"]
COLD_S_MAX = 30 * 60
AGAIN_S_MAX = 2 * 60
LEFT_OUT = ("build", ".git", ".cache", "__pycache__")
KEYS = {"job", "steps", "loss_first", "loss_last", "steps_lost", "noticed_ms", "first_step_ms", "checkpoint_stall_ms",
        "bitwise_equal"}
COPIED = ("/etc/resolv.conf", "/etc/hosts", "/etc/pip.conf", "/usr/local/share/ca-certificates")
CA_BUNDLE = "/etc/ssl/certs/ca-certificates.crt"

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


def mirror():
    """The first Debian mirror of this machine."""
    texts = []
    for folder in ("/etc/apt", "/etc/apt/sources.list.d"):
        texts += [os.path.join(folder, name) for name in sorted(os.listdir(folder))
                  if name.endswith((".list", ".sources"))]
    for path in texts:
        with open(path, encoding="utf-8") as file:
            match = re.search(r"^(?:URIs:|deb(?: \[[^]]*\])?)\s+(https?://\S*debian/?)\s*", file.read(), re.M)
        if match:
            return match[1]
    return "http://deb.debian.org/debian"


def missing():
    if os.geteuid() != 0:
        return "building a root file system needs root"
    return None if shutil.which("debootstrap") else "debootstrap is not installed (apt-get install debootstrap)"


@unittest.skipIf(missing(), missing())
class FreshDebian(unittest.TestCase):
    def setUp(self):
        self.root = tempfile.mkdtemp(prefix="holdfast_debian_", dir="/var/tmp")
        self.addCleanup(shutil.rmtree, self.root, ignore_errors=True)
        subprocess.run(["debootstrap", "--variant=minbase", "bookworm", self.root, mirror()], check=True)
        self.copy_settings()
        shutil.copytree(SOURCE, os.path.join(self.root, "src"), symlinks=True, ignore=shutil.ignore_patterns(*LEFT_OUT))

    def copy_settings(self):
        """What makes the network usable from this machine: names, certificates, pip."""
        for path in COPIED:
            target = self.root + path
            if os.path.isdir(path):
                shutil.copytree(path, target, dirs_exist_ok=True)
            elif os.path.exists(path):
                shutil.copy(path, target)
        if os.path.exists(CA_BUNDLE):
            shutil.copy(CA_BUNDLE, self.root + "/etc/holdfast-test-ca.crt")
        with open(self.root + "/etc/apt/sources.list", "w", encoding="ascii") as file:
            file.write(f"deb {mirror()} bookworm main\n")

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
