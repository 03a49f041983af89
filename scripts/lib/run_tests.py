# SPDX-License-Identifier: Apache-2.0
"""Installs what is missing, builds, and runs the tests with ctest.

  scripts/test                       everything but the long forms; fails past 80 minutes
  scripts/test --label unit          only the tests of one label (may be given again)
  scripts/test --long LABEL          one long form (--list-long names them), each under 150 minutes
  scripts/test --preset asan         another build: debug, asan, tsan (base, ckpt, recorder, pure cores only), clang

Prints the minutes of each label, and ends with ctest's own closing line.
"""
import argparse
import os
import re
import subprocess
import sys
import time

import build

MINUTES_MAX = 80
LONG_MINUTES_MAX = 150
LONG = {
    "systemd": "scheduler and agent under a real systemd in a container",
    "debootstrap": "scripts/quickstart in a fresh Debian 12 root",
    "endurance": "the native job killed 20 times in a row, for each kind of fault",
    "pytorch": "holdfast run and its store under a real PyTorch, ranks killed again and again",
    "slurm": "holdfast run over the nodes of a real local Slurm: nodes lost, requeue, time limit, scancel",
    "leak": "50 short jobs, then a count of everything left behind",
}
# Folders that the tsan preset builds and tests: correct code under Debian's absl::Mutex and gRPC is reported as racy.
TSAN_FOLDERS = ("base", "client", "ckpt", "scheduler")
TSAN_TESTS_LEFT_OUT = r"daemon|server|grpc|rocks|scheduler_(e2e|service)"

# A Python with this is made for `--long pytorch`, unless HOLDFAST_TORCH_PYTHON names one already.
PYTORCH_PACKAGES = ("torch==2.15.0", "numpy", "transformers==5.25.0", "accelerate==1.16.0", "lightning==2.6.6")

CLOSING = re.compile(r"^\d+% tests passed, \d+ tests failed out of \d+")
LABEL_TIME = re.compile(r"^\s*(\S+)\s+=\s+([\d.]+) sec\*proc \((\d+) tests?\)")


def parse_arguments():
    parser = argparse.ArgumentParser(prog="scripts/test", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="release", choices=build.PRESETS)
    parser.add_argument("--label", action="append", default=[],
                        help="unit, foundation, ckpt, faults, train, fp8 or sim")
    parser.add_argument("--long", metavar="LABEL", help="a long form: " + ", ".join(LONG))
    parser.add_argument("--list-long", action="store_true")
    options = parser.parse_args()
    if options.long and options.long not in LONG:
        parser.error(f"--long {options.long}: no such long form; known: {', '.join(LONG)}")
    return options


def ctest_command(options, directory):
    """The ctest command line, and the folder it works in."""
    command = ["ctest", "--output-on-failure", "--no-tests=error", "--parallel", str(os.cpu_count() or 1)]
    if options.long:
        command += ["-C", "Long", "-L", f"^{options.long}$", "--timeout", str(LONG_MINUTES_MAX * 60)]
    elif options.label:
        command += ["-L", "^(" + "|".join(options.label) + ")$"]
    if options.preset == "tsan":
        command += ["-E", TSAN_TESTS_LEFT_OUT]
    return command, directory


class Outcome:
    """What ctest said, folder by folder."""

    def __init__(self):
        self.failed = False
        self.closing = []
        self.labels = {}


def run_ctest(command, directory, outcome):
    """Runs ctest, passes its output on and keeps its closing line and the times of its labels."""
    process = subprocess.Popen(command + ["--test-dir", directory], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               text=True, errors="replace")
    for line in process.stdout:
        if CLOSING.match(line):
            outcome.closing.append(line.rstrip())
        match = LABEL_TIME.match(line)
        if match:
            seconds, tests = outcome.labels.get(match[1], (0.0, 0))
            outcome.labels[match[1]] = (seconds + float(match[2]), tests + int(match[3]))
        print(line, end="", flush=True)
    outcome.failed = process.wait() != 0 or outcome.failed


def pytorch_python():
    """The Python of `--long pytorch`: what HOLDFAST_TORCH_PYTHON says, else an environment in the cache, made once."""
    named = os.environ.get("HOLDFAST_TORCH_PYTHON")
    if named:
        return named
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = os.path.join(cache, "holdfast", "pytorch-" + PYTORCH_PACKAGES[0].rpartition("=")[2])
    python, done = os.path.join(folder, "bin", "python"), os.path.join(folder, "complete")
    if not holds(done, PYTORCH_PACKAGES):
        build.say(f"making a Python environment with {' '.join(PYTORCH_PACKAGES)} in {folder}")
        build.run([sys.executable, "-m", "venv", "--clear", folder])
        build.run([python, "-m", "pip", "install", "--quiet", *PYTORCH_PACKAGES])
        with open(done, "w", encoding="utf-8") as file:
            file.write("\n".join(PYTORCH_PACKAGES))
    return python


def holds(done, packages):
    """Whether the environment was made, and with these packages: one of an older tree may have fewer."""
    try:
        with open(done, encoding="utf-8") as file:
            return set(packages) <= set(file.read().split())
    except FileNotFoundError:
        return False


def test_folders(options, directory):
    if options.preset != "tsan":
        return [directory]
    return [os.path.join(directory, name) for name in TSAN_FOLDERS]


def report(options, outcome, minutes):
    limit = LONG_MINUTES_MAX if options.long else MINUTES_MAX
    print()
    for label, (seconds, tests) in sorted(outcome.labels.items()):
        print(f"label {label}: {seconds / 60:.1f} minutes, {tests} tests")
    print(f"total: {minutes:.1f} minutes of {limit} allowed, installing and building included")
    if os.geteuid() != 0:
        print("not root: tests marked Skipped above say what they need root for")
    too_long = minutes > limit
    if too_long:
        print(f"error: {minutes:.1f} minutes is more than the {limit} allowed")
    for line in outcome.closing:
        print(line)
    return 1 if outcome.failed or too_long or not outcome.closing else 0


def main():
    options = parse_arguments()
    if options.list_long:
        for name, what in LONG.items():
            print(f"{name}: {what}")
        return 0
    started = time.monotonic()
    outcome = Outcome()
    try:
        build.install()
        targets = [f"{name}/all" for name in TSAN_FOLDERS] if options.preset == "tsan" else ()
        directory = build.build(options.preset, targets)
        if options.long == "pytorch":
            os.environ["HOLDFAST_TORCH_PYTHON"] = pytorch_python()
    except build.StepFailed as failure:
        build.say(f"error: {failure}")
        return 1
    for folder in test_folders(options, directory):
        run_ctest(*ctest_command(options, folder), outcome)
    return report(options, outcome, (time.monotonic() - started) / 60)


if __name__ == "__main__":
    sys.exit(main())
