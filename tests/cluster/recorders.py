# SPDX-License-Identifier: Apache-2.0
"""Reads the recorders of a job's ranks (docs/formats/rank.md) through the keeper's descriptors in /proc.

The times in it are CLOCK_MONOTONIC of the rank itself, so a test measures from its own injection to a rank's own step
without believing scheduler or agent.
"""
import os
import struct
from typing import NamedTuple

MAGIC = 0x3152434552465548
HEADER = struct.Struct("<QIIQQQIIIIQQQQ")  # slots of the step ring are field 8, its offset field 10
PROGRESS_OFFSET = 192
PROGRESS = struct.Struct("<QQQIIQQQQ")
READ_BYTES = PROGRESS_OFFSET + PROGRESS.size


STEP_SLOT = struct.Struct("<QQQddddQQ")
STEP_SLOT_BYTES = 128


class Step(NamedTuple):
    step: int
    loss: float
    done_s: float          # CLOCK_MONOTONIC as time.monotonic() gives it
    snapshot_stall_s: float


class Recorder(NamedTuple):
    job: int
    attempt: int
    rank: int
    world_size: int
    step: int              # being worked on
    steps_done: int
    phase: int
    first_step_done_s: float  # CLOCK_MONOTONIC as time.monotonic() gives it; 0: no step of this attempt is finished
    first_step: int


def parse(data):
    """A Recorder, or None for what is none or was being written."""
    if len(data) < READ_BYTES:
        return None
    magic, _, _, _, job, attempt, rank, world_size = HEADER.unpack_from(data)[:8]
    if magic != MAGIC:
        return None
    seq, step, done, phase, _, _, first_ns, first_step, _ = PROGRESS.unpack_from(data, PROGRESS_OFFSET)
    if seq % 2:
        return None
    return Recorder(job, attempt, rank, world_size, step, done, phase, first_ns / 1e9, first_step)


def of_keeper(pid):
    """All recorders that the process `pid` holds, newest attempt of each rank."""
    newest = {}
    for path in _memfds(pid):
        recorder = parse(_head(path))
        if recorder and recorder.attempt >= newest.get(recorder.rank, recorder).attempt:
            newest[recorder.rank] = recorder
    return newest


def steps_of_keeper(pid):
    """{rank: [Step]} of the newest attempt of each rank, as far as the rings still hold them."""
    newest = {}
    for path in _memfds(pid):
        data = _head(path, 1 << 20)
        recorder = parse(data)
        if recorder and recorder.attempt >= newest.get(recorder.rank, (recorder, None))[0].attempt:
            newest[recorder.rank] = (recorder, data)
    return {rank: parse_steps(data) for rank, (_, data) in newest.items()}


def parse_steps(data):
    """The finished steps in a recorder's ring, oldest first; slots that were being written are left out."""
    slots, ring = HEADER.unpack_from(data)[8], HEADER.unpack_from(data)[10]
    steps = []
    for slot in range(slots):
        at = ring + slot * STEP_SLOT_BYTES
        if at + STEP_SLOT_BYTES > len(data):
            break
        seq, step, _, loss, _, _, _, done_ns, stall_ns = STEP_SLOT.unpack_from(data, at)
        if step and seq % 2 == 0:
            steps.append(Step(step, loss, done_ns / 1e9, stall_ns / 1e9))
    return sorted(steps)


def _memfds(pid):
    folder = f"/proc/{pid}/fd"
    try:
        names = os.listdir(folder)
    except OSError:
        return
    for name in names:
        path = f"{folder}/{name}"
        try:
            if os.readlink(path).startswith("/memfd:"):
                yield path
        except OSError:
            continue


def _head(path, size=READ_BYTES):
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.pread(descriptor, size, 0)
    except OSError:
        return b""
    finally:
        os.close(descriptor)
