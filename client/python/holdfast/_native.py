# SPDX-License-Identifier: Apache-2.0
"""libholdfast.so by ctypes: the C ABI of client/holdfast.h, one method a function, errors as exceptions."""
import ctypes
import errno
import functools
import os

from .errors import HoldfastError, StaleAttempt, StateDamaged, StateUnreadable

LIBRARY_NAME = "libholdfast.so.1"
VALUE_BYTES_MAX = 60 << 10  # of the attempt's store

_u64, _u32, _i64, _i32, _double = ctypes.c_uint64, ctypes.c_uint32, ctypes.c_int64, ctypes.c_int32, ctypes.c_double
_session, _text, _data = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p


class Tensor(ctypes.Structure):
    """hf_tensor."""

    _fields_ = [("name", _text), ("dtype", _u32), ("dims", _u32), ("global_shape", ctypes.POINTER(_u64)),
                ("box_offset", ctypes.POINTER(_u64)), ("box_size", ctypes.POINTER(_u64)), ("replica", _u32),
                ("data", _data), ("bytes", _u64)]


class Step(ctypes.Structure):
    """hf_step."""

    _fields_ = [("step", _u64), ("samples", _u64), ("loss", _double), ("grad_norm", _double), ("lr", _double),
                ("tokens_per_s", _double)]


_tensors = ctypes.POINTER(Tensor)
_FUNCTIONS = {  # name: (result, arguments)
    "hf_init": (ctypes.c_int, [ctypes.POINTER(_session), _i64]),
    "hf_close": (None, [_session]),
    "hf_last_error": (_text, []),
    "hf_detached": (ctypes.c_int, [_session]),
    "hf_job": (_u64, [_session]),
    "hf_attempt": (_u64, [_session]),
    "hf_rank": (_u32, [_session]),
    "hf_world_size": (_u32, [_session]),
    "hf_enter_phase": (None, [_session, _u32, _u64, _u32]),
    "hf_finish_step": (None, [_session, ctypes.POINTER(Step)]),
    "hf_set_last_words": (None, [_session, _text]),
    "hf_should_stop": (ctypes.c_int, [_session]),
    "hf_attempt_is_current": (ctypes.c_int, [_session]),
    "hf_save_requests": (_u64, [_session]),
    "hf_records_collectives": (ctypes.c_int, [_session]),
    "hf_group": (ctypes.c_int, [_session, _text, ctypes.POINTER(_u32), _u32, ctypes.POINTER(_u32)]),
    "hf_collective_begin": (_u64, [_session, _u32, _u32, _u32, _i32, _u64]),
    "hf_collective_end": (None, [_session, _u64, _u32]),
    "hf_prepare_snapshots": (ctypes.c_int, [_session, _tensors, ctypes.c_size_t, _u32]),
    "hf_restore_step": (_u64, [_session]),
    "hf_restore_list": (ctypes.c_int, [_session, ctypes.POINTER(_tensors), ctypes.POINTER(ctypes.c_size_t)]),
    "hf_restore": (ctypes.c_int, [_session, _tensors, ctypes.c_size_t, ctypes.POINTER(_u64)]),
    "hf_snapshot_ready": (ctypes.c_int, [_session]),
    "hf_snapshot": (ctypes.c_int, [_session, _tensors, ctypes.c_size_t, _u64, _u64, ctypes.c_int,
                                   ctypes.POINTER(_u64)]),
    "hf_skip_snapshot": (None, [_session]),
    "hf_store_set": (ctypes.c_int, [_session, _text, _data, ctypes.c_size_t]),
    "hf_store_get": (ctypes.c_int, [_session, _text, _i64, _data, ctypes.POINTER(ctypes.c_size_t)]),
    "hf_store_add": (ctypes.c_int, [_session, _text, _i64, ctypes.POINTER(_i64)]),
    "hf_store_delete": (ctypes.c_int, [_session, _text, ctypes.POINTER(ctypes.c_int)]),
}


def library_paths():
    """Where the library is looked for, in this order."""
    named = os.environ.get("HOLDFAST_LIBRARY")
    if named:
        return [named]
    here = os.path.dirname(os.path.abspath(__file__))
    return [os.path.join(here, LIBRARY_NAME), LIBRARY_NAME]


def load_library():
    problems = []
    for path in library_paths():
        try:
            library = ctypes.CDLL(path)
        except OSError as error:
            problems.append(str(error))
            continue
        for name, (result, arguments) in _FUNCTIONS.items():
            try:
                function = getattr(library, name)
            except AttributeError:
                raise HoldfastError(f"{path}: has no {name}; it is older than this package") from None
            function.restype, function.argtypes = result, arguments
        return library
    raise HoldfastError(f"{LIBRARY_NAME} cannot be loaded ({'; '.join(problems)}); install the wheel that "
                        "scripts/package makes, or name the library in HOLDFAST_LIBRARY")


class Box:
    """One tensor as the C ABI wants it. `keep` holds what owns the bytes at `address`."""

    __slots__ = ("name", "dtype", "shape", "offset", "size", "replica", "address", "nbytes", "keep")

    def __init__(self, name, dtype, shape, offset, size, replica, address, nbytes, keep=None):
        self.name, self.dtype, self.replica = name, dtype, replica
        self.shape, self.offset, self.size = tuple(shape), tuple(offset), tuple(size)
        self.address, self.nbytes, self.keep = address, nbytes, keep


class BoxArray:
    """Boxes as an array of hf_tensor; lives as long as the call that it is for."""

    def __init__(self, boxes):
        self.count = len(boxes)
        self.array = (Tensor * max(1, self.count))()
        self._numbers = (_u64 * max(1, 3 * sum(len(box.shape) for box in boxes)))()
        base, at = ctypes.addressof(self._numbers), 0
        for entry, box in zip(self.array, boxes):
            dims = len(box.shape)
            entry.name, entry.dtype, entry.dims = box.name.encode(), box.dtype, dims
            entry.replica, entry.data, entry.bytes = box.replica, box.address, box.nbytes
            for field, numbers in (("global_shape", box.shape), ("box_offset", box.offset), ("box_size", box.size)):
                self._numbers[at:at + dims] = numbers
                setattr(entry, field, ctypes.cast(base + 8 * at, ctypes.POINTER(_u64)))
                at += dims


class Session:
    """One hf_session."""

    def __init__(self, timeout_ms):
        self._library = load_library()
        handle = _session()
        self._check(self._library.hf_init(ctypes.byref(handle), timeout_ms))
        self.handle = handle
        self.job = self._library.hf_job(handle)
        self.attempt = self._library.hf_attempt(handle)
        self.rank = self._library.hf_rank(handle)
        self.world_size = self._library.hf_world_size(handle)
        self._enter_phase = self._library.hf_enter_phase
        self._finish_step = self._library.hf_finish_step
        self._record = Step()
        self._record_at = ctypes.byref(self._record)

    def close(self):
        if self.handle is not None:
            self._library.hf_close(self.handle)
            self.handle = None

    def _check(self, code, damaged=False):
        if code == 0:
            return
        text = (self._library.hf_last_error() or b"").decode("utf-8", "replace") or os.strerror(code)
        text = f"{text} ({errno.errorcode.get(code, code)})"
        if code == errno.ESTALE:
            raise StaleAttempt(text)
        if damaged and code == errno.EBADMSG:
            raise StateDamaged(text)
        if damaged and code == errno.ENOENT:
            raise StateUnreadable(text)
        error = HoldfastError(text)
        error.errno = code
        raise error

    def enter_phase(self, phase, step):
        self._enter_phase(self.handle, phase, step, 0)

    def finish_step(self, step, samples, loss, grad_norm, lr, tokens_per_s):
        record = self._record
        record.step, record.samples, record.loss = step, samples, loss
        record.grad_norm, record.lr, record.tokens_per_s = grad_norm, lr, tokens_per_s
        self._finish_step(self.handle, self._record_at)

    def set_last_words(self, text):
        self._library.hf_set_last_words(self.handle, text.encode())

    def should_stop(self):
        return self._library.hf_should_stop(self.handle)

    def attempt_is_current(self):
        return bool(self._library.hf_attempt_is_current(self.handle))

    def save_requests(self):
        return self._library.hf_save_requests(self.handle)

    def records_collectives(self):
        return bool(self._library.hf_records_collectives(self.handle))

    def add_group(self, name, ranks, size):
        """The number of a process group; `ranks` None: not known."""
        number = _u32()
        array = None if ranks is None else (_u32 * size)(*ranks)
        self._check(self._library.hf_group(self.handle, name.encode("utf-8", "replace"), array, size,
                                           ctypes.byref(number)))
        return number.value

    def collective_calls(self):
        """(begin(group, kind, dtype, peer, bytes) -> operation, end(operation, outcome)), for any thread. They take a
        tenth of a microsecond, and giving up the interpreter for that could cost milliseconds to get it back."""
        library = ctypes.PyDLL(None, handle=self._library._handle)
        calls = []
        for name in ("hf_collective_begin", "hf_collective_end"):
            function = library[name]
            function.restype, function.argtypes = _FUNCTIONS[name]
            calls.append(functools.partial(function, self.handle))
        return calls

    def prepare_snapshots(self, boxes, buffers):
        array = BoxArray(boxes)
        self._check(self._library.hf_prepare_snapshots(self.handle, array.array, array.count, buffers))

    def restore_step(self):
        return self._library.hf_restore_step(self.handle)

    def restore_list(self):
        """Boxes of the snapshot this attempt starts from; what is at their addresses is not verified yet."""
        tensors, count = _tensors(), ctypes.c_size_t()
        self._check(self._library.hf_restore_list(self.handle, ctypes.byref(tensors), ctypes.byref(count)), True)
        boxes = []
        for i in range(count.value):
            t = tensors[i]
            boxes.append(Box(t.name.decode(), t.dtype, t.global_shape[:t.dims], t.box_offset[:t.dims],
                             t.box_size[:t.dims], t.replica, t.data, t.bytes))
        return boxes

    def restore(self, boxes):
        """Fills the boxes and gives the samples consumed."""
        array, samples = BoxArray(boxes), _u64()
        self._check(self._library.hf_restore(self.handle, array.array, array.count, ctypes.byref(samples)), True)
        return samples.value

    def snapshot_ready(self):
        return bool(self._library.hf_snapshot_ready(self.handle))

    def snapshot(self, boxes, step, samples, persist):
        """Copies the boxes into the arena; gives the nanoseconds that took."""
        array, stall = BoxArray(boxes), _u64()
        self._check(self._library.hf_snapshot(self.handle, array.array, array.count, step, samples, int(persist),
                                              ctypes.byref(stall)))
        return stall.value

    def skip_snapshot(self):
        self._library.hf_skip_snapshot(self.handle)

    def store_set(self, key, value):
        self._check(self._library.hf_store_set(self.handle, key.encode(), value, len(value)))

    def store_get(self, key, timeout_ms):
        room = ctypes.create_string_buffer(VALUE_BYTES_MAX)
        size = ctypes.c_size_t(VALUE_BYTES_MAX)
        self._check(self._library.hf_store_get(self.handle, key.encode(), timeout_ms, room, ctypes.byref(size)))
        return room.raw[:size.value]

    def store_add(self, key, delta):
        total = _i64()
        self._check(self._library.hf_store_add(self.handle, key.encode(), delta, ctypes.byref(total)))
        return total.value

    def store_delete(self, key):
        self._check(self._library.hf_store_delete(self.handle, key.encode(), None))
