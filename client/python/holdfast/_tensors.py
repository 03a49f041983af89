# SPDX-License-Identifier: Apache-2.0
"""What counts as a tensor and where its bytes are: buffers of the standard library and NumPy here, PyTorch's in
_torch.py. Nothing is imported that the program has not imported itself."""
import array
import ctypes
import math
import sys

from .errors import StateMismatch

U8 = 6
DIMS_MAX = 8
BUFFER_TYPES = {"e": 3, "f": 1, "d": 2, "?": 10, "b": 5, "B": 6, "c": 6}  # struct's format characters
SIGNED_TYPES = {1: 5, 2: 7, 4: 8, 8: 9}  # bytes of an element


class Slot:
    """One tensor of a state on this rank: its place in a global tensor, and how to get at its bytes.

    `kind` is how it is held, for whoever has to make one. `shape`, `offset`, `size` are in elements of `dtype`; `local`
    is the shape in its owner's terms. `group` names the ranks that hold parts or copies of it (empty: all of the job,
    else this rank alone or the ranks of a mesh); `present` is False where this rank has no part.
    """

    __slots__ = ("kind", "dtype", "shape", "offset", "size", "replica", "local", "layout", "group", "present")

    def __init__(self, kind, dtype, shape, local, group):
        self.kind, self.dtype, self.shape, self.local, self.group = kind, dtype, tuple(shape), tuple(local), group
        self.offset, self.size, self.replica = (0,) * len(self.shape), self.shape, 0
        self.layout, self.present = (), True


class Access:
    """Contiguous bytes: `address`, `nbytes`, what keeps them alive, and what to do after they were written."""

    __slots__ = ("address", "nbytes", "keep", "finish")

    def __init__(self, address, nbytes, keep, finish=None):
        self.address, self.nbytes, self.keep, self.finish = address, nbytes, keep, finish


def torch_side():
    """The module for PyTorch's tensors when the program uses PyTorch, else None."""
    if "torch" not in sys.modules:
        return None
    from . import _torch
    return _torch


def is_numpy(value):
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)


def is_buffer(value):
    return isinstance(value, (bytearray, array.array, memoryview)) or is_numpy(value)


def flat(shape):
    """The shape as the interface takes it: more than eight dimensions become one."""
    return tuple(shape) if len(shape) <= DIMS_MAX else (math.prod(shape),)


def _element(view):
    """(code, dimensions behind the shape) of a buffer's format; unknown ones go as bytes."""
    letter = view.format.lstrip("@=<")
    if sys.byteorder != "little" or view.format.startswith((">", "!")):
        return U8, (view.itemsize,)
    code = BUFFER_TYPES.get(letter)
    if code is None and letter in ("h", "i", "l", "q"):
        code = SIGNED_TYPES.get(view.itemsize)
    return (code, ()) if code is not None else (U8, (view.itemsize,))


def _kind(value, view):
    if isinstance(value, bytearray):
        return "bytearray"
    if isinstance(value, array.array):
        return "array:" + value.typecode
    return "numpy:" + value.dtype.str if is_numpy(value) else "memoryview:" + view.format


def describe_buffer(value, path, group):
    try:
        view = memoryview(value)
    except (ValueError, BufferError, TypeError) as error:
        raise StateMismatch(f"{path}: {error}") from None
    if "O" in view.format or is_numpy(value) and value.dtype.hasobject:
        raise StateMismatch(f"{path}: holds Python objects, not numbers; save them as plain values")
    code, behind = _element(view)
    return Slot(_kind(value, view), code, flat(tuple(view.shape) + behind), view.shape, group)


def _address(buffer, nbytes):
    return ctypes.addressof((ctypes.c_char * nbytes).from_buffer(buffer)) if nbytes else None


def read_buffer(value):
    view = memoryview(value)
    if view.readonly or not view.c_contiguous:
        copy = bytearray(view.tobytes())
        return Access(_address(copy, len(copy)), len(copy), copy)
    return Access(_address(value, view.nbytes), view.nbytes, value)


def write_buffer(value, path):
    view = memoryview(value)
    if view.readonly:
        raise StateMismatch(f"{path}: is read-only; nothing can be loaded into it")
    if view.c_contiguous:
        return Access(_address(value, view.nbytes), view.nbytes, value)
    copy = bytearray(view.nbytes)
    return Access(_address(copy, len(copy)), len(copy), copy, lambda: _spread(copy, value, view, path))


def _spread(copy, value, view, path):
    """Contiguous bytes into a strided buffer."""
    if is_numpy(value):
        numpy = sys.modules["numpy"]
        value[...] = numpy.frombuffer(copy, dtype=value.dtype).reshape(value.shape)
    elif view.ndim == 1:
        view[:] = memoryview(copy).cast(view.format)
    else:
        raise StateMismatch(f"{path}: a strided memoryview of {view.ndim} dimensions cannot be filled; use NumPy")


def make_buffer(ref, path):
    """A buffer of the saved kind, for a place in the state where there was none."""
    family, _, detail = ref.kind.partition(":")
    count = math.prod(ref.local)
    try:
        if family == "bytearray":
            return bytearray(count)
        if family == "array":
            made = array.array(detail)
            made.frombytes(bytes(made.itemsize * count))
            return made
        if family == "memoryview":
            itemsize = memoryview(bytes(16)).cast(detail).itemsize
            return memoryview(bytearray(itemsize * count)).cast(detail, ref.local)
        if family == "numpy":
            import numpy
            return numpy.zeros(ref.local, numpy.dtype(detail))
    except (ValueError, TypeError, ImportError) as error:
        raise StateMismatch(f"{path}: a {ref.kind} cannot be made here ({error}); put one into the state that is "
                            "loaded") from None
    raise StateMismatch(f"{path}: was saved as {ref.kind}, which this version of the package cannot make; put one into "
                        "the state that is loaded")


def describe(value, path, rank, world_size, replicated):
    """The Slot of `value`, or None when it is no tensor."""
    own = "" if replicated else f"rank{rank}"
    torch = torch_side()
    if torch is not None and torch.is_tensor(value):
        return torch.describe(value, path, own, world_size)
    return describe_buffer(value, path, own) if is_buffer(value) else None


def open_to_read(value):
    return read_buffer(value) if is_buffer(value) else torch_side().open_to_read(value)


def open_to_write(value, path):
    return write_buffer(value, path) if is_buffer(value) else torch_side().open_to_write(value, path)


def make(ref, path, meshes):
    """An object of the kind that was saved. `meshes()` gives the device meshes of the state that is loaded."""
    if not ref.kind.startswith(("torch:", "dtensor:")):
        return make_buffer(ref, path)
    try:
        import torch  # noqa: F401  (a state with PyTorch's tensors is loaded: the program needs it anyway)
    except ImportError:
        raise StateMismatch(f"{path}: was saved as a PyTorch tensor, and there is no PyTorch here") from None
    return torch_side().make(ref, path, meshes)
