#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A folder includes only from itself and the floors below it, and says so by paths from the root; what lies in tensor/cpu and
tensor/cuda is theirs alone. The folders of distributed/ have such an order, too: each is listed with what else it may include.
The plug-in that reads watched runs stands apart. Sources of CUDA count, too.
What the drawing of the folders shows (docs/site/drawings/folders.dot) is what they include, and no more."""
import pathlib
import re
import sys

floors = ["tensor", "autograd", "nn", "data", "optim", "graph", "onnx", "distributed", "monitor"]
root = pathlib.Path(sys.argv[1])
# folders of distributed/, from below: what else of it each may include
ground = ("distributed/system/", "distributed/control/", "distributed/comm/")
balance = ("distributed/balance/", "distributed/plan.h")
team = (*ground, *balance, "distributed/job/", "distributed/ranks.h", "distributed/ranks_internal.h", "distributed/ddp.h", "distributed/trainer.h")
grains = (*team, "distributed/team/", "distributed/replay/", "distributed/digests.h")
reduce = (*grains, "distributed/grains/")
passes = (*reduce, "distributed/reduce/", "distributed/stop_internal.h")
policy = (*passes, "distributed/pass/")
rooms = {"distributed/system/": (), "distributed/control/": ground[:1], "distributed/comm/": ground[:2], "distributed/balance/": ground,
         "distributed/outer/": (*ground, "distributed/outer.h"), "distributed/job/": (*ground, "distributed/ranks_internal.h", "distributed/ddp.h"),
         "distributed/replay/": ground, "distributed/team/": team, "distributed/grains/": grains, "distributed/reduce/": reduce, "distributed/pass/": passes, "distributed/policy/": policy,
         "distributed/rounds/": (*policy, "distributed/policy/", "distributed/outer/"),
         "distributed/capture/": (*policy, "distributed/policy/", "distributed/stepper.h", "distributed/stepper_internal.h")}
# what of monitor/ the plug-in libtrek-monitor consists of, and what the library has of it
viewer, viewer_seam = "monitor/viewer/", ("monitor/viewer.h", "monitor/export.h", "monitor/page.h", "monitor/report.h", "monitor/base64.h")
failures, seen, included = [], 0, set()
for floor, folder in enumerate(floors):
    for source in sorted((root / folder).rglob("*")):
        if source.suffix not in (".c", ".h", ".cu", ".cuh"):
            continue
        for name in re.findall(r'^\s*#\s*include\s+"([^"]+)"', source.read_text(), flags=re.M):
            seen += 1
            where = f"{source.relative_to(root)} includes {name}"
            if not (root / name).exists():
                failures.append(f"{where}: not a path from the root")
                continue
            other = name.split("/")[0]
            if other != folder:
                included.add((folder, other))
            if other not in floors:
                failures.append(f"{where}: outside the library")
            own_room = next((room for room in rooms if str(source.relative_to(root)).startswith(room)), None)
            if own_room and other == "distributed" and not name.startswith((own_room, *rooms[own_room])):
                failures.append(f"{where}: {own_room[:-1]} stands below it")
            for room in ("tensor/cpu/", "tensor/cuda/"):
                if name.startswith(room) and not str(source.relative_to(root)).startswith(room):
                    failures.append(f"{where}: reaches into {room[:-1]}")
            inside = str(source.relative_to(root)).startswith(viewer)
            if name.startswith(viewer) and not inside:
                failures.append(f"{where}: {viewer[:-1]} is a plug-in")
            if inside and name.startswith("monitor/") and not name.startswith((viewer, *viewer_seam)):
                failures.append(f"{where}: the plug-in knows nothing of what records")
            if other in floors and floors.index(other) > floor:
                failures.append(f"{where}: up the house")


def reached(edges, begin):
    """All that an arrow, or several, lead to."""
    found, waiting = set(), [begin]
    while waiting:
        now = waiting.pop()
        new = {b for a, b in edges if a == now} - found
        found |= new
        waiting += new
    return found


drawn = set(re.findall(r'^\s*"?(\w+)"? -> "?(\w+)"?;', (root / "docs/site/drawings/folders.dot").read_text(), flags=re.M))
for a, b in sorted(included):
    if b not in reached(drawn, a):
        failures.append(f"docs/site/drawings/folders.dot: {a} includes from {b}, which no arrow shows")
for a, b in sorted(drawn):
    if (a, b) not in included:
        failures.append(f"docs/site/drawings/folders.dot: {a} includes nothing from {b}")
    elif b in reached(drawn - {(a, b)}, a):
        failures.append(f"docs/site/drawings/folders.dot: the arrow from {a} to {b} follows from others")
if seen < 50:
    failures.append(f"only {seen} includes were found: is this check reading the sources?")
print("\n".join(failures) or f"{seen} includes")
sys.exit(bool(failures))
