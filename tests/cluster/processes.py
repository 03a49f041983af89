# SPDX-License-Identifier: Apache-2.0
"""What /proc tells about processes: who belongs to a directory, what environment they have, when they are gone.

Ownership is judged by what the kernel shows (command line, environment), never by what a daemon says of itself.
"""
import os
import signal
import time

POLL_S = 0.01
# Deadlines are multiplied by this, for machines that are slow or busy. They are never what a test measures.
PATIENCE = float(os.environ.get("HOLDFAST_TEST_PATIENCE", "1"))


def _read(path):
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def all_pids():
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def environment(pid):
    """The environment a process was started with; empty when it is gone or not ours to read."""
    pairs = (entry.split(b"=", 1) for entry in _read(f"/proc/{pid}/environ").split(b"\0") if b"=" in entry)
    return {key.decode("utf-8", "replace"): value.decode("utf-8", "replace") for key, value in pairs}


def command_line(pid):
    return [part.decode("utf-8", "replace") for part in _read(f"/proc/{pid}/cmdline").split(b"\0")[:-1]]


def program(pid):
    """The file name of the first word of the command line."""
    return os.path.basename((command_line(pid) or [""])[0])


def _stat(pid, index, missing):
    """A field of /proc/<pid>/stat behind the name, as text; `missing` when there is no such process."""
    text = _read(f"/proc/{pid}/stat").decode("ascii", "replace")
    return text.rpartition(")")[2].split()[index] if ")" in text else missing


def state(pid):
    """The state letter of /proc/<pid>/stat ("Z" is a zombie), or "" when there is no such process."""
    return _stat(pid, 0, "")


def parent(pid):
    """The parent of a process or a zombie; 0: gone."""
    return int(_stat(pid, 1, 0))


def start_ticks(pid):
    """When the process started, in clock ticks since boot: with the pid it names a process for good. 0: gone."""
    return int(_stat(pid, 19, 0))


def alive(pid):
    return state(pid) not in ("", "Z", "X")


def of_directory(directory, everyone=None):
    """Live processes whose command line or environment names something in `directory`; this process is left out."""
    mark = os.path.realpath(directory).encode() + b"/"
    own = ancestors(os.getpid())
    found = []
    for pid in everyone if everyone is not None else all_pids():
        if pid in own or not alive(pid):
            continue
        text = _read(f"/proc/{pid}/cmdline") + b"\0" + _read(f"/proc/{pid}/environ")
        if mark in text.replace(b"\0", b"/\0"):
            found.append(pid)
    return found


def ancestors(pid):
    """`pid` and its parents up to 1."""
    chain = set()
    while pid > 0 and pid not in chain:
        chain.add(pid)
        pid = parent(pid)
    return chain


def send(pid, signo):
    """Sends a signal; False when the process is gone already."""
    try:
        os.kill(pid, signo)
        return True
    except ProcessLookupError:
        return False


def wait_until(condition, deadline_s, what, poll_s=POLL_S):
    """Waits for `condition()` to be true and gives its value; TimeoutError that says `what` otherwise."""
    end = time.monotonic() + deadline_s * PATIENCE
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise TimeoutError(f"not within {deadline_s} s: {what() if callable(what) else what}")
        time.sleep(poll_s)


def wait_gone(pids, deadline_s):
    """Waits until none of `pids` lives; gives those that still do."""
    end = time.monotonic() + deadline_s * PATIENCE
    left = [pid for pid in pids if alive(pid)]
    while left and time.monotonic() < end:
        time.sleep(POLL_S)
        left = [pid for pid in left if alive(pid)]
    return left


def kill_all(pids):
    """Kills processes of ours that should not be there any more."""
    for pid in pids:
        send(pid, signal.SIGCONT)
        send(pid, signal.SIGKILL)
    wait_gone(pids, 10)


def describe(pid):
    return f"{pid} ({state(pid)}) {' '.join(command_line(pid))[:200]}"


def mappings(pid, of):
    """How many mappings of a process have `of` in their path."""
    return sum(of in line for line in _read(f"/proc/{pid}/maps").decode("utf-8", "replace").splitlines())


def open_descriptors(pid):
    """Number of open descriptors of a process; 0 when it is gone."""
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return 0
