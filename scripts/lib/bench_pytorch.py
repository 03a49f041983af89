# SPDX-License-Identifier: Apache-2.0
"""scripts/bench pytorch: an unmodified PyTorch script under `holdfast run` and under torchrun, in turns.

The script is the peers' unmodified_train.py (DDP on Gloo, DataLoader worker, DCP every 10 steps); rank 1 gets SIGKILL
once it has finished a step drawn from a seed. Needs a Python with torch: HOLDFAST_PEERS, and HOLDFAST_PEERS_DIR for
the scripts.
"""
import json
import os
import random
import subprocess
import sys
import time

import build
import drill

RUNS = 10
RUNS_FULL = 100
SEED = 1
LIMIT_S = 60           # for one run from its kill on
START_RUNS = 10
START_RANKS = 4
BINARIES = ("holdfast", "holdfast-scheduler", "holdfast-agent", "holdfast-keeper", "holdfast-tcp-store")
FIRST_LINE = "import os, time\nopen(os.environ['FIRST_LINE'], 'a').write(f'{time.monotonic()}\\n')\n"


def launchers(binaries, python):
    """{name: words before the script}, ours first."""
    torchrun = os.path.join(os.path.dirname(python), "torchrun")
    return {"holdfast run": lambda ranks: [os.path.join(binaries, "holdfast"), "run", f"--nproc-per-node={ranks}"],
            "torchrun": lambda ranks: [torchrun, "--standalone", f"--nproc-per-node={ranks}", "--max-restarts=3"]}


def load_peer(folder):
    if not folder or not os.path.exists(os.path.join(folder, "unmodified_rate.py")):
        raise build.StepFailed(f"HOLDFAST_PEERS_DIR={folder} has no unmodified_rate.py")
    sys.path.append(folder)
    import unmodified_rate  # pylint: disable=import-outside-toplevel
    return unmodified_rate


def recoveries(peer, words, runs):
    """{launcher: [(recovered, bitwise equal, seconds to the next step or None)]}"""
    kinds = {name: make(2) for name, make in words.items()}
    ok, oracle, _ = peer.attempt(kinds["holdfast run"], 0, 2 * LIMIT_S)
    if not ok or not oracle:
        raise build.StepFailed("the undisturbed run of unmodified_train.py failed")
    rng, found = random.Random(SEED), {name: [] for name in kinds}
    for index in range(runs):
        step = rng.randint(11, 45)
        for name, command in kinds.items():
            ok, sha, seconds = peer.attempt(command, step, LIMIT_S)
            found[name].append((ok, ok and sha == oracle, seconds if ok else None))
            build.say(f"run {index + 1}/{runs} {name}: kill at step {step}: "
                      f"{'recovered' if ok else 'NOT recovered'}, {seconds and round(seconds, 2)} s")
    return found


def start_seconds(command, directory):
    """From the launcher's start to the first line of the script in the last rank."""
    marks = os.path.join(directory, "first_line")
    if os.path.exists(marks):
        os.remove(marks)
    script = os.path.join(directory, "first_line.py")
    with open(script, "w", encoding="utf-8") as file:
        file.write(FIRST_LINE)
    began = time.monotonic()
    subprocess.run([*command, script], env={**os.environ, "FIRST_LINE": marks}, stdin=subprocess.DEVNULL,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=LIMIT_S, check=True)
    with open(marks, encoding="utf-8") as file:
        moments = [float(line) for line in file]
    if len(moments) != START_RANKS:
        raise build.StepFailed(f"{len(moments)} of {START_RANKS} ranks reached their first line")
    return max(moments) - began


def starts(words, directory):
    found = {name: [] for name in words}
    for _ in range(START_RUNS):
        for name, make in words.items():
            found[name].append(start_seconds(make(START_RANKS), directory))
    return found


def recovery_lines(found):
    ours, theirs = found["holdfast run"], found["torchrun"]
    seconds = {name: sorted(s for _, _, s in rows if s is not None) for name, rows in found.items()}
    mine = seconds["holdfast run"]
    common = {"bench": "pytorch", "runs": len(ours), "against": "torchrun"}
    for index, metric in ((0, "unmodified_recovered"), (1, "unmodified_bitwise")):
        yield {**common, "metric": metric, "value": sum(row[index] for row in ours), "unit": f"of {len(ours)}",
               "against_value": sum(row[index] for row in theirs)}
    yield {**common, "metric": "unmodified_to_step_s", "unit": "s", "value": drill.rounded(drill.median(mine)),
           "low": drill.rounded(mine[0] if mine else None), "high": drill.rounded(mine[-1] if mine else None),
           "against_value": drill.rounded(drill.median(seconds["torchrun"])),
           "against_runs": len(seconds["torchrun"])}


def start_line(found):
    ours, theirs = sorted(found["holdfast run"]), sorted(found["torchrun"])
    return {"bench": "pytorch", "metric": "start_vs_torchrun", "unit": "ratio", "runs": len(ours),
            "value": drill.rounded(drill.median(ours) / drill.median(theirs)),
            "start_s": drill.rounded(drill.median(ours)),
            "low": drill.rounded(ours[0]), "high": drill.rounded(ours[-1]), "against": "torchrun",
            "against_value": drill.rounded(drill.median(theirs))}


def run(options, directory):
    """Prints the lines of this bench."""
    python = os.environ.get("HOLDFAST_PEERS")
    if not python and options.name is None:
        build.say("pytorch: skipped, since HOLDFAST_PEERS names no Python with torch")
        return
    if not python:
        raise build.StepFailed("bench pytorch needs HOLDFAST_PEERS, a Python with torch (docs/benchmarks.md)")
    peer = load_peer(os.environ.get("HOLDFAST_PEERS_DIR"))
    os.environ["PYTHON_EXEC"] = python
    words = launchers(build.binaries("release", BINARIES), python)
    print(json.dumps(start_line(starts(words, directory))), flush=True)
    for line in recovery_lines(recoveries(peer, words, RUNS_FULL if options.full else RUNS)):
        print(json.dumps(line), flush=True)
