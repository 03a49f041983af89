# SPDX-License-Identifier: Apache-2.0
"""A real Slurm on this machine: one controller and a daemon for each of its nodes, all in a directory of their own.

Needs root, and Debian's slurm-wlm and munge, which are installed when they are missing. Its munge has a key and a
socket of its own, so that one of the machine's is left alone.
"""
import os
import re
import shutil
import socket
import subprocess
import time

PACKAGES = ("slurm-wlm", "munge")
START_S = 60
CALL_S = 60

CONFIG = """
ClusterName=lab
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={directory}/munge/socket
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
StateSaveLocation={directory}/state
SlurmctldPidFile={directory}/run/slurmctld.pid
SlurmdPidFile={directory}/run/slurmd.%n.pid
SlurmdSpoolDir={directory}/spool/%n
SlurmctldLogFile={directory}/log/slurmctld.log
SlurmdLogFile={directory}/log/slurmd.%n.log
SlurmdTimeout=30
KillWait=20
MinJobAge=600
InactiveLimit=0
OverTimeLimit=0
JobRequeue=1
SchedulerType=sched/builtin
SchedulerParameters=sched_interval=1,sched_min_interval=10000,defer_batch,requeue_delay=0
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=2
NodeName=n[1-{nodes}] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{first}-{last}] \\
 CPUs=8 Sockets=1 CoresPerSocket=8 ThreadsPerCore=1 RealMemory=1000 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
"""


def missing():
    """Why there can be no Slurm here; None after what was missing has been installed."""
    if os.geteuid() != 0:
        return "slurmd and munged need root"
    if all(shutil.which(name) for name in ("slurmctld", "slurmd", "munged", "srun")):
        return None
    install = ["apt-get", "install", "-y", "--no-install-recommends", *PACKAGES]
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (install, ["apt-get", "update"], install):
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False, env=environment)
        if command is install and done.returncode == 0:
            return None
    return f"apt-get install {' '.join(PACKAGES)} failed"


def free_ports(count):
    """The first of `count` ports in a row that are free now."""
    for first in range(16000, 19000, count):
        held = []
        try:
            for port in range(first, first + count):
                held.append(socket.socket())
                held[-1].bind(("0.0.0.0", port))
            return first
        except OSError:
            continue
        finally:
            for one in held:
                one.close()
    raise RuntimeError("no free ports")


class Slurm:
    """`directory` must be one that root alone made: munged refuses others."""

    def __init__(self, directory, nodes=3):
        self.directory, self.nodes = directory, [f"n{i + 1}" for i in range(nodes)]
        self.daemons = []
        self.config = os.path.join(directory, "slurm.conf")
        self.environment = {**{k: v for k, v in os.environ.items() if not k.startswith("SLURM_")},
                            "SLURM_CONF": self.config}

    def path(self, *parts):
        return os.path.join(self.directory, *parts)

    def start(self):
        os.chmod(self.directory, 0o755)
        for name in ("state", "log", "run", *(f"spool/{node}" for node in self.nodes)):
            os.makedirs(self.path(name))
        first = free_ports(len(self.nodes) + 1)
        with open(self.config, "w", encoding="utf-8") as file:
            file.write(CONFIG.format(host=socket.gethostname(), directory=self.directory, nodes=len(self.nodes),
                                     port=first, first=first + 1, last=first + len(self.nodes)))
        self._start_munge()
        self._spawn("slurmctld", "-D", "-f", self.config)
        self._wait("slurmctld", lambda: self.run("scontrol", "ping").returncode == 0)
        for node in self.nodes:
            self._spawn("slurmd", "-D", "-N", node, "-f", self.config)
        self._wait("idle nodes", lambda: self.output("sinfo", "-h", "-N", "-o", "%T").split()
                   == ["idle"] * len(self.nodes))

    def stop(self):
        self.run("scancel", "--user", "root", "--signal", "KILL")
        for process in reversed(self.daemons):
            process.terminate()
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def logs(self):
        text = ""
        for name in sorted(os.listdir(self.path("log"))):
            with open(self.path("log", name), encoding="utf-8", errors="replace") as file:
                text += f"--- {name}\n" + file.read()[-3000:]
        return text

    def run(self, *command, **options):
        return subprocess.run(list(map(str, command)), stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=CALL_S, check=False, env=self.environment, **options)

    def output(self, *command):
        return self.run(*command).stdout

    def submit(self, script, cwd, *flags):
        """sbatch; gives the job's number."""
        done = self.run("sbatch", "--parsable", *flags, script, cwd=cwd)
        if done.returncode != 0:
            raise RuntimeError(done.stderr)
        return int(done.stdout)

    def show(self, job):
        """`scontrol show job` as a dictionary."""
        text = self.output("scontrol", "show", "job", "-o", job)
        return dict(re.findall(r"(\S+?)=(\S*)", text))

    def state(self, job):
        return self.show(job).get("JobState", "")

    def pids(self, job):
        """Every process that Slurm counts to the job's steps, on any node: {node: set of pids}."""
        found = {}
        for node in self.nodes:
            text = self.run("scontrol", "listpids", job, node).stdout
            found[node] = {int(row.split()[0]) for row in text.splitlines()[1:]
                           if row.split() and row.split()[0].isdigit()}
        return found

    def _start_munge(self):
        folder = self.path("munge")
        os.makedirs(folder, mode=0o711)
        os.chmod(folder, 0o711)
        key = os.path.join(folder, "key")
        with open(os.open(key, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
            file.write(os.urandom(128))
        munge_socket = os.path.join(folder, "socket")
        self._spawn("munged", "--foreground", "--key-file", key, "--socket", munge_socket, "--pid-file",
                    os.path.join(folder, "pid"), "--log-file", os.path.join(folder, "log"), "--seed-file",
                    os.path.join(folder, "seed"), "--num-threads", "2", "--force")
        self._wait("munged", lambda: self.run("munge", "-n", "-S", munge_socket).returncode == 0)

    def _spawn(self, *command):
        log = open(self.path("log", f"{len(self.daemons)}.{command[0]}.out"), "wb")
        self.daemons.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                             env=self.environment, start_new_session=True))
        log.close()

    def _wait(self, what, condition):
        end = time.monotonic() + START_S
        while not condition():
            if any(process.poll() is not None for process in self.daemons) or time.monotonic() > end:
                raise RuntimeError(f"{what}: not there\n{self.logs()}")
            time.sleep(0.2)
