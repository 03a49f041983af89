# SPDX-License-Identifier: Apache-2.0
"""A rank without torch: meets its peers through MASTER_ADDR:MASTER_PORT as torch.distributed's env:// would, in
TCPStore's protocol (docs/formats/tcp-store.md), and marks steps in a file.

usage: store_rank.py DIR STEPS [FAULT]. Appends to DIR/log, one JSON object a line. FAULT, of rank 1 in its first
attempt: exit0, exit7, raise, ignore-term, close-fds, nul, leave (a process that leaves the session and its parents).
"""
import json
import os
import signal
import socket
import struct
import sys
import time

VALIDATE, SET, ADD, WAIT = 0, 1, 4, 6
MAGIC = 0x3C85F7CE
STEP_S = 0.02


class Store:
    """The few requests that a barrier needs."""

    def __init__(self, host, port):
        self.socket = socket.create_connection((host, port), timeout=60)
        self.socket.sendall(struct.pack("<BI", VALIDATE, MAGIC))

    @staticmethod
    def _text(text):
        return struct.pack("<Q", len(text)) + text

    def add(self, key, amount):
        self.socket.sendall(bytes([ADD]) + self._text(key) + struct.pack("<q", amount))
        return struct.unpack("<q", self._read(8))[0]

    def set(self, key, value):
        self.socket.sendall(bytes([SET]) + self._text(key) + self._text(value))

    def wait(self, key):
        self.socket.sendall(bytes([WAIT]) + struct.pack("<Q", 1) + self._text(key))
        assert self._read(1) == b"\0"

    def _read(self, size):
        data = b""
        while len(data) < size:
            part = self.socket.recv(size - len(data))
            if not part:
                raise ConnectionError("the store is gone")
            data += part
        return data


def misbehave(fault):
    if fault == "exit0":
        os._exit(0)
    if fault == "exit7":
        sys.exit(7)
    if fault == "raise":
        raise RuntimeError("this is my own mistake")
    if fault == "close-fds":
        os.closerange(0, 3)
    if fault == "nul":
        os.write(1, b"a\0b\xff\n")
    if fault == "leave" and os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            while True:
                time.sleep(1)
        os._exit(0)


def main():
    directory, steps = sys.argv[1], int(sys.argv[2])
    fault = sys.argv[3] if len(sys.argv) > 3 else ""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    log = open(os.path.join(directory, "log"), "a", buffering=1, encoding="utf-8")

    def note(**fields):
        common = {"rank": rank, "attempt": attempt, "pid": os.getpid(), "at": time.monotonic()}
        log.write(json.dumps({**common, **fields}) + "\n")

    if fault == "raise-at-import":
        raise ImportError("no module named nonsense")
    if fault == "ignore-term":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    store = Store(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    arrived = store.add(b"arrived", 1)
    note(arrived=arrived, port=int(os.environ["MASTER_PORT"]), agent_store=os.environ["TORCHELASTIC_USE_AGENT_STORE"])
    if arrived == world:
        store.set(b"all", b"here")
    store.wait(b"all")
    print(f"rank {rank} of {world} attempt {attempt} has met the others", flush=True)
    for step in range(1, steps + 1):
        time.sleep(STEP_S)
        note(step=step)
        if step == 5 and rank == 1 and attempt == 0:
            misbehave(fault)
    print(f"rank {rank} is done", flush=True)


if __name__ == "__main__":
    main()
