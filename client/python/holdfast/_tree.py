# SPDX-License-Identifier: Apache-2.0
"""A state (nested dictionaries, lists and tuples of tensors and plain values) to boxes and encoded rest, and back."""
import hashlib
import sys

from . import _tensors
from ._native import Box
from ._values import Ref, Unencodable, encode
from .errors import StateMismatch

NAME_BYTES_MAX = 159  # of a tensor in the snapshot's table
PLAIN = (type(None), bool, int, float, str, bytes)


class Replicated:
    """What holdfast.replicated() gives: inside, plain tensors are the same on every rank."""

    __slots__ = ("value",)

    def __init__(self, value):
        self.value = value


def is_stateful(value):
    return callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None))


def _join(path, key):
    return f"{path}/{key}" if path else str(key)


def tensor_name(group, path):
    """At most 159 bytes of printable text, the same for the same place on every rank."""
    name = f"{group or 'shared'}/{path}"
    clean = "".join(c if c.isprintable() else "?" for c in name)
    if clean == name and len(name.encode()) <= NAME_BYTES_MAX:
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    short = clean.encode()[:NAME_BYTES_MAX - 17].decode("utf-8", "ignore")
    return f"{short}~{digest}"


def state_name(rank):
    """The tensor that holds the encoded rest of one rank's state."""
    return f"rank{rank}#state"


def plain(value):
    """`value` itself, or the plain value that it stands for; TypeError when it is none."""
    if type(value) in PLAIN:
        return value
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.generic):
        item = value.item()
        if type(item) in PLAIN:
            return item
    raise TypeError


class Flattener:
    """Walks a state that is saved."""

    def __init__(self, rank, world_size):
        self._rank, self._world_size = rank, world_size
        self._names = set()
        self.boxes = []

    def flatten(self, state):
        """Boxes of all tensors, and of the encoded rest as the last one."""
        if isinstance(state, Replicated) or is_stateful(state) or isinstance(state, dict):
            tree = self._walk(state, "", False)
        else:
            raise StateMismatch(f"a state is a dictionary, not a {type(state).__qualname__}")
        try:
            rest = encode(tree)
        except Unencodable as problem:
            raise StateMismatch(f"the state {problem}") from None
        shape = (len(rest),)
        access = _tensors.read_buffer(rest)
        self.boxes.append(Box(state_name(self._rank), _tensors.U8, shape, (0,), shape, 0, access.address, len(rest),
                              access.keep))
        return self.boxes

    def _walk(self, value, path, replicated):
        if isinstance(value, Replicated):
            return self._walk(value.value, path, True)
        if isinstance(value, dict):
            return {self._key(key, path): self._walk(item, _join(path, key), replicated)
                    for key, item in value.items()}
        slot = _tensors.describe(value, path, self._rank, self._world_size, replicated)
        if slot is not None:
            return self._tensor(value, slot, path)
        if isinstance(value, list):
            return [self._walk(item, _join(path, i), replicated) for i, item in enumerate(value)]
        if type(value) is tuple or type(value).__qualname__ == "Size" and isinstance(value, tuple):
            return tuple(self._walk(item, _join(path, i), replicated) for i, item in enumerate(value))
        if is_stateful(value):
            return self._walk(value.state_dict(), path, replicated)
        try:
            return plain(value)
        except TypeError:
            raise StateMismatch(f"{path}: is a {type(value).__module__}.{type(value).__qualname__}, which cannot be "
                                "saved; tensors, buffers, dictionaries, lists, tuples, numbers, str, bytes, bool and "
                                "None can") from None

    def _key(self, key, path):
        if isinstance(key, tuple) and all(type(part) in PLAIN for part in key):
            return key
        try:
            return plain(key)
        except TypeError:
            raise StateMismatch(f"{path or 'the state'}: has a key of type {type(key).__qualname__}") from None

    def _tensor(self, value, slot, path):
        # "a/b" and "a" -> "b" may meet in one dictionary; both walks are in the same order on all ranks.
        name, number = tensor_name(slot.group, path), 1
        while name in self._names:
            number += 1
            name = tensor_name(slot.group, f"{path}~{number}")
        self._names.add(name)
        if slot.present:
            access = _tensors.open_to_read(value)
            # Every rank that holds a replicated tensor whole says which copy it has; copy 0 is written.
            replica = self._rank if slot.group == "" and not slot.layout else slot.replica
            self.boxes.append(Box(name, slot.dtype, slot.shape, slot.offset, slot.size, replica, access.address,
                                  access.nbytes, access.keep))
        return Ref(name, slot.kind, slot.dtype, slot.shape, slot.local, slot.layout)


class Filler:
    """Walks a state that is loaded, beside what was saved. Nothing of it changes before apply(), but the contents of
    tensors that are filled in place."""

    def __init__(self, rank, world_size):
        self._rank, self._world_size = rank, world_size
        self._actions, self._finishes, self._held = [], [], {}
        self._root = None
        self.boxes = []

    def plan(self, state, saved):
        self._root = state
        self._merge(state, saved, "", None)

    def apply(self):
        for finish in self._finishes:
            finish()
        for action in self._actions:
            action()

    def _merge(self, value, saved, path, assign):
        """Plans to make `value` what was saved; `assign` puts another object in its place. Gives the final object."""
        if isinstance(value, Replicated):
            return self._merge(value.value, saved, path, assign)
        if isinstance(saved, Ref):
            return self._fill(value, saved, path, assign)
        if isinstance(saved, dict) and not isinstance(value, dict) and is_stateful(value):
            inner = self._state_dict(value)
            self._merge(inner, saved, path, None)
            self._actions.append(lambda: value.load_state_dict(inner))
            return value
        if isinstance(value, dict) and isinstance(saved, dict):
            return self._merge_dict(value, saved, path)
        if isinstance(value, list) and isinstance(saved, list) and len(value) <= len(saved):
            return self._merge_list(value, saved, path)
        if isinstance(value, tuple) and isinstance(saved, tuple) and len(value) == len(saved):
            final = tuple(self._merge(v, s, _join(path, i), None) for i, (v, s) in enumerate(zip(value, saved)))
        else:
            self._check_replaceable(value, saved, path)
            final = self._make(saved, path)
        if assign is not None:
            self._actions.append(lambda: assign(final))
        return final

    def _check_replaceable(self, value, saved, path):
        """A plain value may become any other; a container or a tensor only what it was saved as."""
        if value is None or type(value) in PLAIN or isinstance(value, tuple) and isinstance(saved, tuple):
            return
        try:
            plain(value)
        except TypeError:
            kind = type(saved).__name__ + (f" of {len(saved)}" if isinstance(saved, (list, tuple)) else "")
            raise StateMismatch(f"{path or 'the state'}: was saved as {kind}, here is a {type(value).__qualname__}"
                                + (f" of {len(value)}" if isinstance(value, list) else "")) from None

    def _state_dict(self, value):
        if id(value) not in self._held:
            self._held[id(value)] = (value, value.state_dict())
        return self._held[id(value)][1]

    def _merge_dict(self, value, saved, path):
        extra = next((key for key in value if key not in saved), None)
        if extra is not None:
            raise StateMismatch(f"{_join(path, extra)}: is not in what was saved")
        for key, item in saved.items():
            def assign(final, key=key):
                value[key] = final
            if key in value:
                self._merge(value[key], item, _join(path, key), assign)
            else:
                final = self._make(item, _join(path, key))
                self._actions.append(lambda assign=assign, final=final: assign(final))
        return value

    def _merge_list(self, value, saved, path):
        for i, item in enumerate(saved):
            def assign(final, i=i):
                value[i:i + 1] = [final]
            if i < len(value):
                self._merge(value[i], item, _join(path, i), assign)
            else:
                final = self._make(item, _join(path, i))
                self._actions.append(lambda assign=assign, final=final: assign(final))
        return value

    def _make(self, saved, path):
        """A new object like what was saved."""
        if isinstance(saved, Ref):
            return self._fill(None, saved, path, None)
        if isinstance(saved, dict):
            return {key: self._make(item, _join(path, key)) for key, item in saved.items()}
        if isinstance(saved, (list, tuple)):
            return type(saved)(self._make(item, _join(path, i)) for i, item in enumerate(saved))
        return saved

    def _fill(self, value, ref, path, assign):
        if value is None:
            value = _tensors.make(ref, path, self._meshes)
            if assign is not None:
                self._actions.append(lambda: assign(value))
        slot = _tensors.describe(value, path, self._rank, self._world_size, False)
        if slot is None:
            raise StateMismatch(f"{path}: was saved as a tensor ({ref.kind}), here is a {type(value).__qualname__}")
        wanted, have = (ref.dtype, ref.shape), (slot.dtype, slot.shape)
        # By the element type's name too: types without a code of their own all go as bytes.
        if wanted != have or _element_name(ref.kind) != _element_name(slot.kind):
            raise StateMismatch(f"{path}: was saved as {ref.kind} {list(ref.shape)}, here is {slot.kind} "
                                f"{list(slot.shape)}")
        if slot.present:
            access = _tensors.open_to_write(value, path)
            self.boxes.append(Box(ref.name, slot.dtype, slot.shape, slot.offset, slot.size, slot.replica,
                                  access.address, access.nbytes, access.keep))
            if access.finish is not None:
                self._finishes.append(access.finish)
        return value

    def _meshes(self):
        found = []
        self._find_meshes(self._root, found)
        return found

    def _find_meshes(self, value, found):
        if isinstance(value, Replicated):
            self._find_meshes(value.value, found)
        elif isinstance(value, dict):
            for item in value.values():
                self._find_meshes(item, found)
        elif isinstance(value, (list, tuple)):
            for item in value:
                self._find_meshes(item, found)
        elif _tensors.torch_side().is_tensor(value):
            found.extend(_tensors.torch_side().meshes_of(value))
        elif is_stateful(value):
            self._find_meshes(self._state_dict(value), found)


def _element_name(kind):
    """"torch:float32" and "dtensor:float32" hold the same elements; buffers are told apart by their code alone."""
    family, _, name = kind.partition(":")
    return name if family in ("torch", "dtensor") else ""
