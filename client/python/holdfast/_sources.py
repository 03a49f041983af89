# SPDX-License-Identifier: Apache-2.0
"""Where a state comes from: the snapshot in the keeper's memory, or a committed checkpoint that holdfast-ckpt reads and
verifies. Both give `step`, read_state(rank), and fill(boxes), which gives the samples consumed."""
import ctypes
import json
import os
import re
import select
import shutil
import subprocess
import tempfile

from . import _tree
from ._native import Box
from .errors import HoldfastError, StateDamaged, StateMismatch, StateUnreadable

CKPT_PROGRAM = "holdfast-ckpt"
SILENCE_MAX_S = 600  # of a reader that reads from a slow disk
PIPE_BYTES = 1 << 20
F_SETPIPE_SZ = 1031
TOOL_DAMAGED, TOOL_NOT_FOUND = 1, 3  # exit codes of holdfast-ckpt


def parse_checkpoint(text):
    """"checkpoint:<store>:j-1@20.1" as (store, id, step)."""
    match = re.fullmatch(r"checkpoint:(.+):(j-\d+@(\d+)\.\d+)", text, re.DOTALL)
    if match is None or int(match[3]) == 0:
        raise HoldfastError(f"HOLDFAST_RESTORE={text}: is not checkpoint:<store>:j-<job>@<step>.<attempt>")
    return match[1], match[2], int(match[3])


class Memory:
    """The snapshot of this rank that its keeper holds."""

    def __init__(self, native):
        self._native = native
        self.step = native.restore_step()
        self.where = f"the snapshot of step {self.step} in memory"
        self._listed = {box.name: box for box in native.restore_list()}
        self._rest = self._state = None

    def read_state(self, rank):
        """The encoded rest; what fill() reads, verified, must be the same bytes."""
        self._rest = self._listed.get(_tree.state_name(rank))
        if self._rest is None:
            raise StateMismatch(f"{self.where} was not taken by holdfast.save: it has no tensor "
                                f"{_tree.state_name(rank)}")
        self._state = ctypes.string_at(self._rest.address, self._rest.nbytes)
        return self._state

    def fill(self, boxes):
        for box in boxes:
            held = self._listed.get(box.name)
            if held is None or (held.offset, held.size) != (box.offset, box.size):
                raise StateMismatch(f"{self.where}: tensor {box.name} is there as "
                                    f"{held and (held.offset, held.size)}, here is {(box.offset, box.size)}; a job "
                                    "changes its layout only when it starts from a checkpoint")
        held = self._rest
        again = bytearray(held.nbytes)
        address = ctypes.addressof((ctypes.c_char * held.nbytes).from_buffer(again))
        state = Box(held.name, held.dtype, held.shape, held.offset, held.size, held.replica, address, held.nbytes)
        samples = self._native.restore([*boxes, state])
        if again != self._state:
            raise StateDamaged(f"{self.where}: {held.name} changed while it was read")
        return samples


class Checkpoint:
    """A committed checkpoint in a store directory."""

    def __init__(self, restore):
        self._store, self._id, self.step = parse_checkpoint(restore)
        self.where = f"checkpoint {self._id} in {self._store}"
        self._program = find_program()
        shown = json.loads(self._run("show", "--json"))
        self._tensors = {t["name"]: t for t in shown["tensors"]}
        self._world_size, self._samples = int(shown["world_size"]), int(shown["samples"])

    def _run(self, verb, *flags):
        done = subprocess.run([self._program, verb, *flags, self._store, self._id], stdin=subprocess.DEVNULL,
                              capture_output=True, timeout=SILENCE_MAX_S, check=False)
        self._check(done.returncode, done.stderr)
        return done.stdout

    def _check(self, code, err):
        if code == 0:
            return
        text = f"{self.where}: {err.decode('utf-8', 'replace').strip() or f'{self._program} ended with {code}'}"
        raise (StateDamaged if code == TOOL_DAMAGED else StateUnreadable)(text)

    def read_state(self, rank):
        """Of the rank of this number, or of rank 0 where fewer ranks saved."""
        name = _tree.state_name(rank if rank < self._world_size else 0)
        tensor = self._tensors.get(name)
        if tensor is None or len(tensor["shape"]) != 1:
            raise StateMismatch(f"{self.where} was not made by holdfast.save: it has no tensor {name}")
        rest = bytearray(tensor["shape"][0])
        self._read([{"tensor": name}], [memoryview(rest)])
        return bytes(rest)

    def fill(self, boxes):
        for box in boxes:
            tensor = self._tensors.get(box.name)
            if tensor is None or tuple(tensor["shape"]) != box.shape:
                raise StateMismatch(f"{self.where}: tensor {box.name} is "
                                    f"{'not there' if tensor is None else tensor['shape']}, wanted is "
                                    f"{list(box.shape)}")
        views = [memoryview((ctypes.c_char * box.nbytes).from_address(box.address)).cast("B") if box.nbytes
                 else memoryview(bytearray()) for box in boxes]
        self._read([{"tensor": box.name, "offset": box.offset, "size": box.size} for box in boxes], views)
        return self._samples

    def _read(self, requests, views):
        lines = "".join(json.dumps(request) + "\n" for request in requests).encode()
        with tempfile.TemporaryFile() as err, tempfile.TemporaryFile() as asked:
            asked.write(lines)
            asked.seek(0)
            process = subprocess.Popen([self._program, "read", self._store, self._id], stdin=asked,
                                       stdout=subprocess.PIPE, stderr=err, bufsize=0)
            try:
                whole = all(self._fill(process.stdout, view) for view in views)
                code = process.wait(SILENCE_MAX_S) if whole else self._end_of(process)
            finally:
                if process.poll() is None:
                    process.kill()
                    process.wait()
                process.stdout.close()
            err.seek(0)
            self._check(code, err.read(4096))
            if not whole:
                raise StateUnreadable(f"{self.where}: {self._program} gave fewer bytes than were asked for")

    def _end_of(self, process):
        try:
            return process.wait(SILENCE_MAX_S)
        except subprocess.TimeoutExpired:
            raise StateUnreadable(f"{self.where}: {self._program} neither gives more nor ends") from None

    def _fill(self, pipe, view):
        """Reads exactly the bytes of `view`; False at the end of the pipe."""
        widen(pipe)
        poll = select.poll()
        poll.register(pipe, select.POLLIN)
        at = 0
        while at < len(view):
            if not poll.poll(SILENCE_MAX_S * 1000):
                raise StateUnreadable(f"{self.where}: {self._program} was silent for {SILENCE_MAX_S} s")
            got = os.readv(pipe.fileno(), [view[at:]])
            if got == 0:
                return False
            at += got
        return True


def widen(pipe):
    """A larger pipe means fewer switches between the processes; not everybody may have one."""
    try:
        import fcntl
        fcntl.fcntl(pipe, F_SETPIPE_SZ, PIPE_BYTES)
    except OSError:
        pass


def find_program():
    """holdfast-ckpt: named by the agent, else on PATH."""
    named = os.environ.get("HOLDFAST_CKPT") or CKPT_PROGRAM
    found = shutil.which(named) or shutil.which(CKPT_PROGRAM)
    if found is None:
        raise StateUnreadable(f"{CKPT_PROGRAM} is neither at HOLDFAST_CKPT={named} nor on PATH; it reads and verifies "
                              "checkpoints: install it beside the job's Python")
    return found
