# SPDX-License-Identifier: Apache-2.0
"""A warm standby: a Python process that has imported what a script begins with, and waits to become a rank.

  python -u holdfast-standby.py auto|MODULE[,MODULE...] SCRIPT [ARGUMENTS]
  python -u holdfast-standby.py auto|MODULE[,MODULE...] -m MODULE [ARGUMENTS]

Started by the keeper. Descriptor 3 is a pipe: one byte means "go", its end means "nobody needs you". Descriptor 4 is a
file with what the rank is to get: NUL-terminated env=K=V and cwd=PATH, as in a start spec (docs/formats/rank.md).
The script then runs as `python SCRIPT` would run it: as __main__, with its own sys.argv and sys.path[0].

"auto" imports what the script's own first lines import, in their order, as far as it is installed: nothing that lies
beside the script, and nothing behind a line that touches the environment, since that may be meant for an import.
"""
import os
import signal
import sys

GO_FD, START_FD = 3, 4
# Importing these joins a group of processes, or may: that is for a rank, in its own time.
JOIN_AT_IMPORT = ("mpi4py", "horovod")
# What a library imports by itself at the first step: torch's optimizers import its compiler (1 s, torch 2.15).
AT_FIRST_STEP = {"torch": ("torch._dynamo",)}


def read_all(fd):
    parts, at = [], 0
    while True:
        part = os.pread(fd, 1 << 20, at)
        if not part:
            return b"".join(parts)
        parts.append(part)
        at += len(part)


def target(words):
    """(is a module, name, arguments) of the command behind the interpreter."""
    if words[0] == "-m":
        return True, words[1], words[2:]
    return False, words[0], words[1:]


def source_of(is_module, name):
    """The script's path, or None."""
    if not is_module:
        return name
    import importlib.util
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(name + ".__main__")
        return spec.origin if spec is not None else None
    except (ImportError, ValueError):
        return None


def first_imports(path):
    """Names of the modules that the first lines of a script import."""
    import ast
    try:
        with open(path, "rb") as file:
            tree = ast.parse(file.read())
    except (OSError, SyntaxError, ValueError):
        return []
    names = []
    for node in tree.body:
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.append(node.module)
            names += [f"{node.module}.{alias.name}" for alias in node.names]  # a submodule, or only a name of it
        elif "environ" in ast.dump(node) or "putenv" in ast.dump(node):
            break
    return names


def is_beside(name, folder):
    top = name.partition(".")[0]
    return any(os.path.exists(os.path.join(folder, top + end)) for end in ("", ".py"))


def import_quietly(module):
    """What cannot be imported is the script's own affair, once it runs."""
    import importlib
    try:
        importlib.import_module(module)
    except Exception:  # pylint: disable=broad-except
        pass


def preload(wanted, is_module, name):
    """Imports what is wanted, and what that imports itself later on."""
    if wanted == "auto":
        path = source_of(is_module, name)
        names = first_imports(path) if path else []
        folder = os.getcwd() if is_module else os.path.dirname(os.path.abspath(name))
        names = [n for n in names if not is_beside(n, folder) and n.partition(".")[0] not in JOIN_AT_IMPORT]
    else:
        names = wanted.split(",")
    for module in names:
        import_quietly(module)
    for library, later in AT_FIRST_STEP.items():
        for module in later if library in sys.modules else ():
            import_quietly(module)


def become(entries):
    """Takes over the rank's environment and directory."""
    environment = {}
    for entry in entries.split(b"\0"):
        key, _, value = entry.partition(b"=")
        if key == b"cwd":
            os.chdir(value)
        elif key == b"env":
            variable, _, text = value.partition(b"=")
            environment[variable] = text
    for variable in [v for v in os.environb if v not in environment]:
        del os.environb[variable]
    os.environb.update(environment)


def run(is_module, name, arguments):
    """Never returns to the caller's frames in a traceback: what fails below fails as it would alone."""
    import types
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = sys.modules["builtins"]
    sys.modules["__main__"] = main
    if is_module:
        import runpy
        sys.path[0] = os.getcwd()
        sys.argv[:] = ["-m"] + arguments
        runpy._run_module_as_main(name)  # pylint: disable=protected-access  # what `python -m` calls
        return
    import importlib.machinery
    sys.path[0] = os.path.dirname(os.path.realpath(name))
    sys.argv[:] = [name] + arguments
    # As the interpreter has them: absolute since Python 3.9.
    path = os.path.abspath(name) if sys.version_info >= (3, 9) else name
    main.__file__, main.__cached__, main.__spec__ = path, None, None
    main.__loader__ = importlib.machinery.SourceFileLoader("__main__", path)
    with open(name, "rb") as file:
        code = compile(file.read(), path, "exec")
    exec(code, main.__dict__)  # pylint: disable=exec-used


def fail(error, skipped):
    """As the interpreter reports an uncaught exception, without the frames of this file."""
    traceback = error.__traceback__
    for _ in range(skipped):
        traceback = traceback.tb_next if traceback is not None else None
    sys.excepthook(type(error), error.with_traceback(traceback), traceback)
    sys.stderr.flush()
    sys.exit(1)


def main():
    wanted, words = sys.argv[1], sys.argv[2:]
    is_module, name, arguments = target(words)
    # Imports see the path that the script's own would see.
    sys.path[0] = os.getcwd() if is_module else os.path.dirname(os.path.realpath(name))
    # Slurm tells a whole step that its time is nearly up: that is for those who train.
    for signo in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(signo, signal.SIG_IGN)
    preload(wanted, is_module, name)
    if not os.read(GO_FD, 1):
        sys.exit(0)
    for signo in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(signo, signal.SIG_DFL)
    entries = read_all(START_FD)
    os.close(GO_FD)
    os.close(START_FD)
    become(entries)
    if hasattr(sys, "orig_argv"):
        sys.orig_argv[:] = [sys.orig_argv[0]] + words
    try:
        run(is_module, name, arguments)
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException as error:  # pylint: disable=broad-except
        fail(error, 2)


main()
