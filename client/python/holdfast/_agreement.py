# SPDX-License-Identifier: Apache-2.0
"""What all ranks of a job decide together at a save: is everybody ready, was anybody told to stop, did anybody ask for
a checkpoint. One meeting of all ranks for each call; all must call in the same order."""
import collections
import sys

MEET_TIMEOUT_MS = 600_000  # a rank that never comes is Holdfast's to find, and sooner
_NOT_READY, _STOP, _SAVE = 1 << 16, 1 << 32, 1 << 48  # four counters in one sum, 16 bits each

Wish = collections.namedtuple("Wish", "ready stop save")  # stop: 0, or hf_should_stop's reason


def over_torch(world_size):
    """A function that adds up integers over all ranks by torch.distributed, or None. It is used where the default group
    is Gloo: a reduction of three numbers takes less than the store's two requests, and they need no device. Over NCCL
    it would wait for the device's queue, which is the stall that save() avoids; there the store does it."""
    if "torch" not in sys.modules:
        return None
    import torch
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized() and distributed.get_backend() == "gloo"
            and distributed.get_world_size() == world_size):
        return None

    def largest(numbers):
        tensor = torch.tensor(numbers, dtype=torch.int64)
        distributed.all_reduce(tensor, op=distributed.ReduceOp.MAX)
        return tensor.tolist()
    return largest


class Agreement:
    def __init__(self, native):
        self._native = native
        self._meeting = 0

    def meet(self, mine):
        if self._native.world_size == 1:
            return mine
        largest = over_torch(self._native.world_size)
        if largest is not None:
            not_ready, stop, save = largest([int(not mine.ready), mine.stop, int(mine.save)])
            return Wish(not not_ready, stop, bool(save))
        return self._meet_in_store(mine)

    def _key(self, meeting, what):
        return f"python/{meeting}/{what}"

    def _meet_in_store(self, mine):
        self._meeting += 1
        if mine.stop:
            self._native.store_set(self._key(self._meeting, "reason"), b"%d" % mine.stop)
        delta = 1 + (not mine.ready) * _NOT_READY + bool(mine.stop) * _STOP + bool(mine.save) * _SAVE
        total = self._native.store_add(self._key(self._meeting, "count"), delta)
        if total % _NOT_READY == self._native.world_size:
            self._decide(total)
        answer = self._native.store_get(self._key(self._meeting, "answer"), MEET_TIMEOUT_MS).decode()
        ready, stop, save = (int(word) for word in answer.split())
        return Wish(bool(ready), stop, bool(save))

    def _decide(self, total):
        """The last to arrive says what all said, and clears away the meeting before: everybody has left that one."""
        not_ready, stops, saves = ((total // unit) % _NOT_READY for unit in (_NOT_READY, _STOP, _SAVE))
        reason = 0
        if stops:
            reason = int(self._native.store_get(self._key(self._meeting, "reason"), MEET_TIMEOUT_MS))
        self._native.store_set(self._key(self._meeting, "answer"), b"%d %d %d" % (not not_ready, reason, saves > 0))
        if self._meeting > 1:
            for what in ("count", "answer", "reason"):
                self._native.store_delete(self._key(self._meeting - 1, what))
