# SPDX-License-Identifier: Apache-2.0
"""What the Python entry points share: the tree's root, installing, configuring and building, finding the binaries."""
import os
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

# Those of CMakePresets.json.
PRESETS = ("release", "debug", "asan", "tsan", "clang")


class StepFailed(Exception):
    """A command of an entry point failed; its own output has said why."""


def say(text):
    print(text, file=sys.stderr, flush=True)


def run(command, **options):
    """Runs a command with its output on stderr; raises StepFailed when it fails."""
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=options.pop("stdout", sys.stderr), **options)
    if done.returncode != 0:
        raise StepFailed(f"{' '.join(command)} ended with {done.returncode}")
    return done


def install():
    run([os.path.join(ROOT, "scripts", "install-deps")])


def build_directory(preset):
    return os.path.join(ROOT, "build", preset)


def configure(preset):
    """Configures once; CMake itself reconfigures when a CMakeLists.txt changed."""
    directory = build_directory(preset)
    if not os.path.exists(os.path.join(directory, "build.ninja")):
        run(["cmake", "--preset", preset, "-S", ROOT], cwd=ROOT)
    return directory


def build(preset, targets=()):
    """Installs what is missing, configures and builds; returns the build directory."""
    directory = configure(preset)
    command = ["cmake", "--build", directory]
    if targets:
        command += ["--target", *targets]
    started = time.monotonic()
    say(f"building {preset}" + (f" ({' '.join(targets)})" if targets else ""))
    run(command)
    say(f"built in {time.monotonic() - started:.0f} s")
    return directory


def binaries(preset, targets):
    """The directory of the binaries, built if needed. HOLDFAST_BIN names a directory of existing ones instead."""
    ready = os.environ.get("HOLDFAST_BIN")
    if ready:
        missing = [name for name in targets if not os.path.exists(os.path.join(ready, name))]
        if missing:
            raise StepFailed(f"HOLDFAST_BIN={ready} has no {', '.join(missing)}; unset it to build")
        return ready
    install()
    return os.path.join(build(preset, targets), "bin")
