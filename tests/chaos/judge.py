# SPDX-License-Identifier: Apache-2.0
"""Compares what Holdfast said and did with what the injector knows. Pure: no clock, no process, no file."""
import dataclasses

PREFIX = "JOB_STATE_"


@dataclasses.dataclass
class Seen:
    """What a case left: the job's last status, all incidents of the cluster, and the two digests."""

    status: dict              # JobStatus as JSON
    incidents: list           # Incident as JSON, of the job and of its nodes, oldest first
    digest: str = ""          # of the last step's checkpoint; empty: there is none
    reference: str = ""       # of the undisturbed run
    problems: tuple = ()      # what went wrong on the way: a deadline, a gap in the step log, a process left behind
    nodes_held: tuple = ()    # nodes taken out of service


@dataclasses.dataclass
class Judgement:
    verdict: str
    correct: bool             # class and target
    wrong_name: bool          # something was named that the fault did not hit
    false_actions: int        # restarts that the fault does not call for
    end: str
    bitwise_equal: bool
    met: bool                 # the end and the rung are those expected
    why: str                  # not met or not correct: why


def named_ranks(incident):
    return tuple(sorted(int(rank) for rank in incident.get("ranks", [])))


def verdict_text(incidents):
    if not incidents:
        return "none"
    return "; ".join(_one(incident) for incident in incidents)


def _one(incident):
    words = [incident.get("fault_class", "UNSPECIFIED")]
    ranks = named_ranks(incident)
    if ranks:
        words.append(("rank " if len(ranks) == 1 else "ranks ") + ",".join(map(str, ranks)))
    if incident.get("node"):
        words.append(f"node {incident['node']}")
    words.append(f"rung {int(incident.get('rung', 0))}{'' if incident.get('acted') else ' (observed)'}")
    return " ".join(words)


def expected_text(answer):
    return f"{answer['end']}, rung {answer['rung']}"


def end_text(status):
    state = status.get("state", "UNKNOWN").replace(PREFIX, "")
    return f"{state}({status.get('reason', '')})" if state == "FAILED" else state


def end_word(status, equal):
    """The end as faults.json writes it: `same`; else `different` for a job that is done with other bits, or its end."""
    end = end_text(status)
    return end if end != "DONE" else "same" if equal else "different"


def names_target(incident, answer, ranks, node):
    """Whether an incident has the class of the answer and names what was hit, no more and no less."""
    if incident.get("fault_class") != answer["class"]:
        return False
    if ranks:
        return named_ranks(incident) == tuple(sorted(ranks))
    return incident.get("node", "") == node


def names_another(incident, ranks, node, ranks_of_node=()):
    """Whether an incident names a rank or a node that was not hit."""
    hit = set(ranks) | set(ranks_of_node)
    other_node = bool(incident.get("node")) and bool(node) and incident["node"] != node
    return bool(set(named_ranks(incident)) - hit) or other_node


def judge(answer, ranks, node, seen, ranks_of_node=()):
    """`answer` is the entry of faults.json, `ranks` and `node` what the injector hit."""
    acted = [incident for incident in seen.incidents if incident.get("acted")]
    restarts = int(seen.status.get("restarts", 0))
    called_for = 1 if answer["rung"] >= 2 else 0
    false_actions = max(0, max(len(acted), restarts) - called_for) + len(seen.nodes_held)
    if answer["class"]:
        right = [incident for incident in seen.incidents if names_target(incident, answer, ranks, node)]
        correct = len(right) == 1 and len(seen.incidents) == 1
    else:
        correct = not seen.incidents
    equal = bool(seen.digest) and seen.digest == seen.reference
    end = end_word(seen.status, equal)
    why = _why_not(answer, seen, acted, restarts, end)
    met = not why
    if not correct:
        wanted = answer["class"] or "no incident"
        why.append(f"verdict is {verdict_text(seen.incidents)}, right is {wanted} of what was hit")
    return Judgement(verdict=verdict_text(seen.incidents), correct=correct,
                     wrong_name=any(names_another(i, ranks, node, ranks_of_node) for i in seen.incidents),
                     false_actions=false_actions, end=end, bitwise_equal=equal,
                     met=met, why="; ".join(why))


def _why_not(answer, seen, acted, restarts, end):
    """Why the end or the rung is not the one expected; empty when it is."""
    why = list(seen.problems)
    if end == "different":
        why.append(f"digest {seen.digest or '(none)'} is not the undisturbed run's {seen.reference}")
    elif end != answer["end"]:
        why.append(f"the job's end is {end}, right is {answer['end']}")
    rungs = sorted({int(incident.get("rung", 0)) for incident in acted}) or [0]
    if rungs != [answer["rung"]]:
        why.append(f"rung {'/'.join(map(str, rungs))}, right is {answer['rung']}")
    wanted = 1 if answer["rung"] >= 2 else 0
    if restarts != wanted:
        why.append(f"{restarts} restarts, right is {wanted}")
    return why


def times(incident, hit_wall_ns, acted):
    """An incident's times in ms from the injection. begin_wall_ns + x_ms is a moment of this machine's wall clock."""
    names = ("noticed_ms", "named_ms", "stopped_ms", "restored_ms", "first_step_ms")
    if incident is None or not int(incident.get("begin_wall_ns", 0)):
        return dict.fromkeys(names)
    shift = (int(incident["begin_wall_ns"]) - hit_wall_ns) / 1e6
    result = {}
    for name in names:
        value = float(incident.get(name, 0))
        known = value > 0 or name in ("noticed_ms", "named_ms")
        result[name] = round(value + shift, 1) if known and (acted or name in ("noticed_ms", "named_ms")) else None
    return result


def summary(cases):
    """The last line: `cases` are (line, Judgement, steps lost) triples."""
    total = len(cases)
    share = lambda count: round(100.0 * count / total, 1) if total else 0.0  # noqa: E731
    failed = [line["case"] for line, judgement, _ in cases if not judgement.met]
    return {"summary": True, "cases": total, "correct_pct": share(sum(j.correct for _, j, _ in cases)),
            "wrong_name_pct": share(sum(j.wrong_name for _, j, _ in cases)),
            "false_actions": sum(j.false_actions for _, j, _ in cases),
            "recovered": sum(j.end in ("same", "different") for _, j, _ in cases),
            "bitwise_equal": sum(j.bitwise_equal for _, j, _ in cases),
            "steps_lost_max": max((lost for _, _, lost in cases), default=0), "failed": failed}


CORRECT_PCT_MIN = 95.0


def passes(line, cases):
    """Exit 0: every case met what is expected, enough verdicts are right, nothing was done without need."""
    return bool(cases) and all(judgement.met for _, judgement, _ in cases) and \
        line["correct_pct"] >= CORRECT_PCT_MIN and line["false_actions"] == 0
