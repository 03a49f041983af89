# SPDX-License-Identifier: Apache-2.0
"""Files of a checkpoint of torch.distributed.checkpoint: written under a temporary name, committed by the rename of one
file, read with every byte verified (docs/formats/dcp.md). Needs no torch."""
import errno
import os
import threading
import time

from ._dcp_format import (COMMIT_NAME, DATA_NAME, DIGESTS, UNFINISHED_NAME, Entry, piece_bytes_of, piece_count,
                          read_commit)
from .errors import HoldfastError, StateDamaged, StateUnreadable

STRIDE_BYTES = 1 << 20  # digested and copied in one go: it stays in the processor's cache between the two
BATCH_BYTES = 4 << 20  # small items are written together up to this size
THREADS_MAX = 8
_WRITE_REMEDIES = {errno.ENOSPC: "free space or save to another path", errno.EDQUOT: "raise the quota or free space",
                   errno.EACCES: "the user of this process must be allowed to write there",
                   errno.EPERM: "the user of this process must be allowed to write there",
                   errno.EROFS: "save to a path that can be written to",
                   errno.ENOTDIR: "save to a path that is a directory, or not there yet",
                   errno.EEXIST: "save to a path that is a directory, or not there yet"}


def write_error(path, error):
    """The one error of a save that `error` ended."""
    remedy = _WRITE_REMEDIES.get(error.errno, "save again or to another path")
    failure = HoldfastError(f"{path}: {error.strerror or error}; {remedy}. What was committed there before is as it "
                            "was")
    failure.errno = error.errno
    return failure


def default_threads():
    """A fair part of the processors for one of the ranks of this machine; two at least, one waits for the disk."""
    try:
        ranks = max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    except ValueError:
        ranks = 1
    return max(2, min(THREADS_MAX, len(os.sched_getaffinity(0)) // ranks))


_fastest = []


def _time_digest(make, sample):
    begin = time.perf_counter()
    make(sample)
    return time.perf_counter() - begin


def fastest_digest():
    """Of the two digests the one that is faster here: SHA-256 where the processor has instructions for it."""
    if not _fastest:
        sample = bytes(256 << 10)
        # The best of several, in turns: another process must not decide.
        times = [(_time_digest(make, sample), name) for _ in range(5) for name, make in DIGESTS.items()]
        _fastest.append(min(times)[1])
    return _fastest[0]


def pump(jobs, work, threads):
    """work(job) for each of `jobs`, in `threads` threads, this one among them; next() of `jobs` is called by one thread
    at a time. The first error stops all and is raised when all have stopped."""
    lock, errors = threading.Lock(), []

    def loop():
        try:
            while not errors:
                with lock:
                    job = next(jobs, None)
                if job is None:
                    return
                work(job)
        except BaseException as error:
            errors.append(error)

    others = [threading.Thread(target=loop, name=f"holdfast-dcp-{i}", daemon=True) for i in range(threads - 1)]
    for thread in others:
        thread.start()
    loop()
    for thread in others:
        thread.join()
    if errors:
        raise errors[0]


def sync_directory(path):
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_directory(path):
    """`path` and what is above it, so that a lost machine finds it again."""
    missing, at = [], os.path.abspath(path)
    while not os.path.exists(at):
        missing.append(at)
        at = os.path.dirname(at)
    os.makedirs(path, exist_ok=True)
    for created in missing:
        sync_directory(os.path.dirname(created))


def _write_all(fd, view, at):
    while len(view):
        written = os.pwrite(fd, view, at)
        view, at = view[written:], at + written


class DataFile:
    """A file of one thread of one rank in one save. Its name is new: no file of an earlier save is ever touched."""

    def __init__(self, directory, rank, algorithm):
        self.name, self._end, self._algorithm = f"holdfast-dcp-{os.urandom(8).hex()}-{rank}.data", 0, algorithm
        self._path = os.path.join(directory, self.name)
        self._part = self._path + ".part"
        self._fd = os.open(self._part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)

    def append(self, batch):
        """`batch`: (list that takes (file, begin, digest), place in it, bytes, what keeps them alive)."""
        together = bytearray() if len(batch) > 1 else None
        begin = self._end
        for pieces, number, view, _ in batch:
            digest = DIGESTS[self._algorithm]()
            for at in range(0, len(view), STRIDE_BYTES):
                stride = view[at:at + STRIDE_BYTES]
                digest.update(stride)
                if together is None:
                    _write_all(self._fd, stride, begin + at)
                else:
                    together += stride
            pieces[number] = (self.name, self._end, digest.hexdigest())
            self._end += len(view)
        if together is not None:
            _write_all(self._fd, memoryview(together), begin)

    def sync(self):
        os.fsync(self._fd)
        self._close()

    def rename(self):
        os.rename(self._part, self._path)

    def _close(self):
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def discard(self):
        """For a save that failed; what cannot be removed now the next commit removes."""
        self._close()
        for path in (self._part, self._path):
            try:
                os.unlink(path)
            except OSError:
                pass


def _batches(sources, piece_bytes, algorithm, items):
    """Pieces of what `sources` yields, small ones together; `items` gets (its Entry's fields, list of its pieces)."""
    batch, size = [], 0
    for fqn, offset, dtype, shape, view, keep in sources:
        pieces = [None] * piece_count(len(view), piece_bytes)
        items.append(((fqn, offset, dtype, shape, len(view), algorithm), pieces))
        for number in range(len(pieces)):
            piece = view[number * piece_bytes:(number + 1) * piece_bytes]
            if batch and size + len(piece) > BATCH_BYTES:
                yield batch
                batch, size = [], 0
            batch.append((pieces, number, piece, keep))
            size += len(piece)
    if batch:
        yield batch


def write_data(directory, rank, sources, threads, piece_bytes, algorithm=None):
    """Writes what `sources` yields: (fqn, offset, dtype, shape, bytes, what keeps them alive). One Entry for each, all
    on the disk. A file for each thread: a file system lets one thread at a time write to a file."""
    algorithm = algorithm or fastest_digest()
    files, items, local = [], [], threading.local()

    def append(batch):
        if not hasattr(local, "file"):
            local.file = DataFile(directory, rank, algorithm)
            files.append(local.file)
        local.file.append(batch)

    try:
        pump(_batches(sources, piece_bytes, algorithm, items), append, threads)
        pump(iter(files), DataFile.sync, len(files))
        for file in files:
            file.rename()
        sync_directory(directory)
    except BaseException:
        for file in files:
            file.discard()
        raise
    return [Entry(*fields, tuple(pieces)) for fields, pieces in items]


def check_sizes(directory, file_bytes, failure):
    """Every file is there and as long as it must be; else `failure` with the reason."""
    for name, size in file_bytes.items():
        path = os.path.join(directory, name)
        try:
            found = os.stat(path).st_size
        except OSError as error:
            raise failure(f"{path}: {error.strerror}") from None
        if found != size:
            raise failure(f"{path}: has {found} bytes, should have {size}")


def write_commit(directory, data, keep):
    """Makes the checkpoint of `data` (a commit file) the one of `directory`, at once, and removes the data files that
    it does not name (`keep`: those that it does)."""
    part = os.path.join(directory, f"{COMMIT_NAME}.{os.urandom(8).hex()}.part")
    fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        try:
            _write_all(fd, memoryview(data), 0)
            os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(part, os.path.join(directory, COMMIT_NAME))
    except BaseException:
        try:
            os.unlink(part)
        except OSError:
            pass
        raise
    sync_directory(directory)
    remove_leftovers(directory, keep)


def remove_leftovers(directory, keep):
    """Files of earlier and of dead saves. The checkpoint is committed: what cannot be removed is left."""
    for name in os.listdir(directory):
        if name not in keep and (DATA_NAME.fullmatch(name) or UNFINISHED_NAME.fullmatch(name)):
            try:
                os.unlink(os.path.join(directory, name))
            except OSError:
                pass


class Source:
    """Verified bytes of a committed checkpoint. Threads may share it."""

    def __init__(self, directory, commit):
        self._directory, self._commit = directory, commit
        self._fds = {}

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        for fd in self._fds.values():
            os.close(fd)
        self._fds = {}

    def open(self, entry):
        """Before the first read of this item; by one thread."""
        for name in {piece[0] for piece in entry.pieces} - self._fds.keys():
            self._open(name)

    def _open(self, name):
        path = os.path.join(self._directory, name)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            self._check_not_replaced()
            kind = StateDamaged if error.errno == errno.ENOENT else StateUnreadable
            raise kind(f"{path}: {error.strerror}, and the checkpoint needs it; load an older one") from None
        self._fds[name] = fd
        size, wanted = os.fstat(fd).st_size, self._commit.file_bytes[name]
        if size != wanted:
            raise StateDamaged(f"{path}: has {size} bytes, should have {wanted}; load an older checkpoint")

    def check_files(self):
        """That no file is missing or of another size."""
        def failure(text):
            self._check_not_replaced()
            return StateDamaged(f"{text}, and the checkpoint needs it; load an older one")
        check_sizes(self._directory, self._commit.file_bytes, failure)

    def _check_not_replaced(self):
        if read_commit(self._directory).seal != self._commit.seal:
            raise HoldfastError(f"{self._directory}: another save replaced the checkpoint while it was read; load "
                                "again")

    def read_piece(self, entry, number, into):
        """Piece `number` of an item into `into` (a memoryview of at least its size); gives its size."""
        name, begin, wanted = entry.pieces[number]
        size = piece_bytes_of(entry.nbytes, number, self._commit.piece_bytes)
        digest = DIGESTS[entry.algorithm]()
        at = 0
        while at < size:
            stride = into[at:min(at + STRIDE_BYTES, size)]
            got = self._read(entry, name, stride, begin + at)
            digest.update(stride[:got])
            at += got
        if digest.hexdigest() != wanted:
            raise StateDamaged(f"{os.path.join(self._directory, name)}: {entry.name()}: bytes {begin} to "
                               f"{begin + size} do not match their digest; load an older checkpoint")
        return size

    def _read(self, entry, name, view, at):
        path = os.path.join(self._directory, name)
        try:
            got = os.preadv(self._fds[name], [view], at)
        except OSError as error:
            raise StateUnreadable(f"{path}: {entry.name()}: {error.strerror}; load an older checkpoint") from None
        if got == 0:
            raise StateDamaged(f"{path}: {entry.name()}: ends at {at}; load an older checkpoint")
        return got

    def read(self, entry):
        """A whole small item."""
        data = bytearray(entry.nbytes)
        view, at = memoryview(data), 0
        for number in range(len(entry.pieces)):
            at += self.read_piece(entry, number, view[at:])
        return bytes(data)
