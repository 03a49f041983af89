#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Scheduler and agent under a real systemd: a Debian 12 root booted by systemd-nspawn.

Both become ready and are started again when they are killed or silent; stopping, restarting or killing the agent leaves
keeper and rank running. Needs root, debootstrap, systemd-nspawn and a Debian mirror.
"""
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

import debian_root

BUILD = os.environ["HOLDFAST_BUILD_DIR"]
SOURCE = os.environ["HOLDFAST_SOURCE_DIR"]
PROGRAMS = ("holdfast", "holdfast-scheduler", "holdfast-agent", "holdfast-keeper", "holdfast-ckpt",
            "holdfast-test-rank")
PACKAGES = ("systemd,systemd-sysv,dbus,libgrpc++1.51,libprotobuf32,librocksdb7.8,liburing2,libyaml-cpp0.7,"
            "libspdlog1.10,libabsl20220623,libxxhash0,libzstd1,libfmt9,procps")
BOOT_S = 120
STEPS = 100000


def missing():
    if os.geteuid() != 0:
        return "booting a container needs root"
    for program in ("debootstrap", "systemd-nspawn", "nsenter"):
        if not shutil.which(program):
            return f"{program} is not installed"
    return None


class Container:
    """A booted root; commands run in its namespaces."""

    def __init__(self, root):
        self.root = root
        self.console = open(os.path.join(root, "console.log"), "wb")  # closed in stop()
        self.process = subprocess.Popen(
            ["systemd-nspawn", "--quiet", "--boot", "--register=no", "--keep-unit", "--link-journal=no",
             "--console=pipe", "--directory", root], stdin=subprocess.DEVNULL, stdout=self.console, stderr=self.console,
            start_new_session=True)

    def leader(self):
        """The pid of the container's init: the child of systemd-nspawn."""
        path = f"/proc/{self.process.pid}/task/{self.process.pid}/children"
        try:
            with open(path, encoding="ascii") as file:
                children = file.read().split()
        except OSError:
            return 0
        return int(children[-1]) if children else 0

    def run(self, *command, check=True):
        done = subprocess.run(["nsenter", "--target", str(self.leader()), "--mount", "--uts", "--ipc", "--pid", "--net",
                               "--root", "--wd=/", *command], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=120, check=False)
        if check and done.returncode != 0:
            raise AssertionError(f"{' '.join(command)} ended with {done.returncode}: {done.stdout}{done.stderr}")
        return done.stdout

    def show(self, unit, key):
        return self.run("systemctl", "show", "--property", key, "--value", unit).strip()

    def stop(self):
        leader = self.leader()
        if leader:
            os.kill(leader, signal.SIGRTMIN + 4)  # systemd: power off
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.console.close()

    def tail(self):
        with open(os.path.join(self.root, "console.log"), "rb") as file:
            return file.read()[-3000:].decode("utf-8", "replace")


def wait_until(condition, deadline_s, what):
    end = time.monotonic() + deadline_s
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.1)
    raise AssertionError(f"not within {deadline_s} s: {what() if callable(what) else what}")


@unittest.skipIf(missing(), missing())
class UnderSystemd(unittest.TestCase):
    def setUp(self):
        self.root = tempfile.mkdtemp(prefix="holdfast_boot_", dir="/var/tmp")
        self.addCleanup(shutil.rmtree, self.root, ignore_errors=True)
        debian_root.make(self.root, include=PACKAGES)
        self.install()
        self.container = Container(self.root)
        self.addCleanup(self.container.stop)
        wait_until(lambda: self.active("holdfast-scheduler") and self.active("holdfast-agent"), BOOT_S,
                   lambda: "both units active\n" + self.evidence())

    def install(self):
        for name in PROGRAMS:
            shutil.copy(os.path.join(BUILD, "bin", name), os.path.join(self.root, "usr/bin", name))
        units = os.path.join(self.root, "etc/systemd/system")
        wants = os.path.join(units, "multi-user.target.wants")
        os.makedirs(wants, exist_ok=True)
        for name in ("holdfast-scheduler.service", "holdfast-agent.service"):
            shutil.copy(os.path.join(SOURCE, "deploy/systemd", name), units)
            os.symlink(f"/etc/systemd/system/{name}", os.path.join(wants, name))
        target = os.path.join(self.root, "usr/lib/sysusers.d")
        os.makedirs(target, exist_ok=True)
        shutil.copy(os.path.join(SOURCE, "deploy/systemd/holdfast.sysusers"), os.path.join(target, "holdfast.conf"))
        with open(os.path.join(self.root, "etc/hostname"), "w", encoding="ascii") as file:
            file.write("n0\n")

    def active(self, unit):
        return self.container.leader() and \
            self.container.run("systemctl", "is-active", unit, check=False).strip() == "active"

    def evidence(self):
        """What systemd says of the units, and the end of the console."""
        if not self.container.leader():
            return f"systemd-nspawn ended with {self.container.process.poll()}: {self.container.tail()}"
        units = self.container.run("systemctl", "status", "--no-pager", "holdfast-scheduler", "holdfast-agent",
                                   check=False)
        return units + self.container.run("journalctl", "--no-pager", "-n", "40", check=False) + self.container.tail()

    def pid(self, unit):
        return int(self.container.show(unit, "MainPID"))

    def wait_new_pid(self, unit, old):
        return wait_until(lambda: self.active(unit) and self.pid(unit) not in (0, old) and self.pid(unit), 30,
                          f"a new process of {unit}")

    def rank(self):
        return self.container.run("pgrep", "-x", "holdfast-test-r", check=False).split()

    def state(self):
        text = self.container.run("holdfast", "describe", "--state", "/var/lib/holdfast", "j-1", "--json", check=False)
        return json.loads(text) if text else {}

    def test_daemons_come_and_go_and_the_rank_stays(self):
        self.container.run("holdfast", "submit", "--state", "/var/lib/holdfast", "--nodes", "1", "--gpus-per-node", "0",
                           "--", "/usr/bin/holdfast-test-rank", "--steps", str(STEPS), "--bytes", "65536",
                           "--step-ms", "20")
        ranks = wait_until(self.rank, 30, "a rank")
        only_it = ("kill", "--kill-whom=main")  # without it the keepers and ranks in its cgroup are meant, too
        for what in (("restart",), (*only_it, "--signal=SIGKILL"), (*only_it, "--signal=SIGSTOP")):
            for unit in ("holdfast-agent", "holdfast-scheduler"):
                with self.subTest(what=what, unit=unit):
                    old = self.pid(unit)
                    self.container.run("systemctl", *what, unit)
                    self.wait_new_pid(unit, old)
                    self.assertEqual(self.rank(), ranks)
        self.container.run("systemctl", "stop", "holdfast-agent")
        self.assertEqual(self.rank(), ranks)
        self.container.run("systemctl", "start", "holdfast-agent")
        step = int(wait_until(lambda: self.state().get("step"), 30, "a step"))
        wait_until(lambda: int(self.state().get("step", 0)) > step, 30, "further steps")
        self.assertEqual(self.state().get("restarts", 0), 0)
        self.container.run("holdfast", "cancel", "--state", "/var/lib/holdfast", "j-1")
        wait_until(lambda: not self.rank(), 30, "the rank gone")


if __name__ == "__main__":
    program = unittest.main(exit=False, verbosity=2)
    if missing():
        print(f"every test was skipped: {missing()}")
    raise SystemExit(0 if program.result.wasSuccessful() else 1)
