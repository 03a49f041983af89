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

LAYOUT = struct.Struct("<I4xQQ")  # layout, offset and bytes of the collectives
LAYOUT_OFFSET = 88
COLLECTIVES = struct.Struct("<IIIIQ40xQ")
GROUP_AT = 128
GROUP = struct.Struct("<IIIIQ64s40xQQQ8xQQQ8x")
GROUP_BYTES, GROUP_RANKS_OFFSET, GROUP_RANKS_LISTED = 320, 192, 32
OPERATION = struct.Struct("<QQQQQQQBBBBi")
KINDS = ("other", "all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "send", "recv", "barrier",
         "reduce", "gather", "scatter")
OUTCOMES = ("running", "finished", "failed", "unseen")


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


class Counts(NamedTuple):
    begun: int
    ended: int
    failed: int


class Group(NamedTuple):
    name: str
    size: int
    digest: int            # of its ranks
    ranks: tuple           # the first 32 of them; (): not known
    collectives: Counts
    point_to_point: Counts

    @property
    def key(self):
        """What the same group has on all its ranks."""
        return self.name, self.size, self.digest


class Operation(NamedTuple):
    ticket: int
    number: int            # in its group; sends and receives count apart
    begin_s: float         # CLOCK_MONOTONIC as time.monotonic() gives it
    end_s: float           # 0: it runs
    bytes: int
    step: int
    group: int             # index in Collectives.groups
    kind: str
    dtype: int
    outcome: str
    peer: int


class Collectives(NamedTuple):
    groups: list
    operations: list       # as far as the ring still holds them, oldest first

    @property
    def running(self):
        return [operation for operation in self.operations if operation.outcome == "running"]

    def counts(self, key):
        """Of the newest group with this key; a rank that has none has begun nothing in it."""
        return next((group.collectives for group in reversed(self.groups) if group.key == key), Counts(0, 0, 0))


def behind(of_ranks, key):
    """{rank: begun} of the members of a group that have begun fewer of its collectives than another, by {rank:
    Collectives}: those that the others wait for."""
    members = next(group.ranks for one in of_ranks.values() for group in one.groups if group.key == key)
    begun = {rank: one.counts(key).begun for rank, one in of_ranks.items() if rank in members}
    return {rank: count for rank, count in begun.items() if count < max(begun.values())}


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
    return {rank: parse_steps(data) for rank, data in _whole(pid).items()}


def collectives_of_keeper(pid):
    """{rank: Collectives} of the newest attempt of each rank."""
    return {rank: parse_collectives(data) for rank, data in _whole(pid).items()}


def _whole(pid):
    """{rank: all bytes of the recorder} of the newest attempt of each rank."""
    newest = {}
    for path in _memfds(pid):
        data = _head(path, 1 << 20)
        recorder = parse(data)
        if recorder and recorder.attempt >= newest.get(recorder.rank, (recorder, None))[0].attempt:
            newest[recorder.rank] = (recorder, data)
    return {rank: data for rank, (_, data) in newest.items()}


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


def parse_collectives(data):
    """What a recorder says of collectives; empty for one of layout 1. Records that were being written are left out."""
    layout, at, _ = LAYOUT.unpack_from(data, LAYOUT_OFFSET)
    if layout < 2:
        return Collectives([], [])
    slots, groups_max, given, _, _, _ = COLLECTIVES.unpack_from(data, at)
    groups = [_group(data, at + GROUP_AT + i * GROUP_BYTES) for i in range(min(given, groups_max))]
    ring = at + GROUP_AT + groups_max * GROUP_BYTES
    operations = []
    for slot in range(slots):
        seq, ticket, number, begin, end, size, step, group, kind, dtype, outcome, peer = \
            OPERATION.unpack_from(data, ring + slot * OPERATION.size)
        if ticket and seq % 2 == 0 and ticket % slots == slot:
            operations.append(Operation(ticket, number, begin / 1e9, end / 1e9, size, step, group - 1, KINDS[kind],
                                        dtype, OUTCOMES[outcome], peer))
    return Collectives(groups, sorted(operations))


def _group(data, at):
    _, size, listed, _, digest, name, *counts = GROUP.unpack_from(data, at)
    ranks = struct.unpack_from(f"<{min(listed, GROUP_RANKS_LISTED)}I", data, at + GROUP_RANKS_OFFSET)
    return Group(name.split(b"\0")[0].decode(errors="replace"), size, digest, ranks, Counts(*counts[:3]),
                 Counts(*counts[3:]))


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
