# SPDX-License-Identifier: Apache-2.0
"""The table of right answers for every fault, as data (faults.json), and the reader of the page it comes from."""
import json
import os
import re

HERE = os.path.dirname(os.path.abspath(__file__))
COLUMNS = ("kind", "class", "target", "rung", "end", "in")


def parse_page(text):
    """The rows of the page's table: a dictionary of its six columns each."""
    rows = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if line.startswith("|") and len(cells) == len(COLUMNS) and cells[0] != "kind" and not set(cells[0]) <= set("-"):
            rows.append(dict(zip(COLUMNS, cells)))
    return rows


def expand_kinds(cell):
    """Kind names of a first column: without remarks in parentheses, with a{b,c} expanded, split at commas."""
    plain = re.sub(r"\([^)]*\)", "", cell)
    names = []
    for part in re.split(r",(?![^{]*\})", plain):
        part = part.strip()
        match = re.match(r"(.*)\{([^}]*)\}(.*)$", part)
        names += [match[1] + piece.strip() + match[3] for piece in match[2].split(",")] if match else [part]
    return names


def load():
    with open(os.path.join(HERE, "faults.json"), encoding="utf-8") as file:
        return json.load(file)


def row_of(table, kind):
    """The page's row for a kind."""
    return next((row for row in table["rows"] if kind in expand_kinds(row["kind"])), None)
