"""``make bench BENCH=hub``: a class of thirty on one hub, by its own API and real kernels.

Listed accounts, all on this machine, and the hub's own keeper of job slots.  Said are: how long students wait
for their servers, what thirty idle notebooks take, how quickly the hub answers meanwhile, and how a 4-rank job
of each of them fares: how long it waits for its turn, who overtakes it, when its panel offers another way.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from classroom.hub.classroom import Hub, Kernel  # noqa: E402

STUDENTS = int(os.environ.get("DLPAR_BENCH_STUDENTS", "30"))
ANSWER, MEMORY, OFFER = 1.0, 12 << 30, 15.0
"""The bars: seconds in which the hub answers; bytes of thirty idle notebooks with the running jobs; seconds in
the queue after which a panel offers another way."""

OPEN = """
import dlpar
from dlpar import lab
panel = lab.Panel(dlpar.Experiment(workers=4, steps=100))
display(panel)
from dlpar.jobs.fork_server import warm_socket
print(warm_socket() is not None)  # shown a panel, a student reads before she presses Run
"""
JOB = """
import json, time
came, began, offered = time.time(), None, None
job = panel.run()
while panel.running:
    now, waits = time.time(), began is None and job.run.status in ("queued", "starting")
    began = began if waits else began or now
    if offered is None and panel.state["offer"]:
        offered = now - came
    time.sleep(0.1)
queued = [said for said in map(json.loads, open(job.folder / "job.jsonl")) if said["k"] == "queued"]
joined, ahead = (queued[0]["at"], queued[0]["ahead"]) if queued else (came, 0)
print(json.dumps({"came": came, "joined": joined, "ahead": ahead, "began": began or came,
                  "ended": time.time(), "offered": offered,
                  "status": job.run.status, "reason": job.run.reason}))
"""


ASK = """
import json, sys, time, urllib.request
url, token = sys.argv[1:]
asked = urllib.request.Request(url, headers={"Authorization": f"token {token}"})
while True:
    began = time.time()
    try:
        urllib.request.urlopen(asked, timeout=30).read()
    except OSError as error:
        print(f"the hub did not answer: {error}", file=sys.stderr)
    print(json.dumps([began, time.time() - began]), flush=True)
    time.sleep(0.5)
"""


class Watch:
    """Asks the hub every half second how it is, from another process, and adds up what its processes take."""

    def __init__(self, hub: Hub) -> None:
        self.hub, self.most, self.done, self.phases = (
            hub,
            0,
            threading.Event(),
            [(time.time(), "servers started")],
        )
        words = [sys.executable, "-c", ASK, f"{hub.url}/hub/api/users?limit=100", hub.token]
        self.asking = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        self.weighing = threading.Thread(target=self._weigh, daemon=True)
        self.weighing.start()

    def now(self, what: str) -> None:
        """Another phase begins."""
        self.phases.append((time.time(), what))

    def _weigh(self) -> None:
        while not self.done.wait(10.0):
            self.most = max(self.most, weight(self.hub.process.pid))

    def stop(self) -> dict[str, list[float]]:
        """End it; how long the hub took to answer in each phase, in seconds."""
        self.done.set()
        self.weighing.join()
        self.asking.terminate()
        found: dict[str, list[float]] = {what: [] for _, what in self.phases}
        for began, seconds in map(json.loads, self.asking.communicate()[0].splitlines()):
            found[max(phase for phase in self.phases if phase[0] <= max(began, self.phases[0][0]))[1]].append(
                seconds
            )
        return found


def weight(root: int) -> int:
    """Bytes of a process, of all below it and of the class's fork servers and ranks, shared pages counted once."""
    from dlpar.jobs.processes import descendants

    total = 0
    everybody = set(descendants(root)) | {root}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if int(name) in everybody or b"/hub-student" in Path(f"/proc/{name}/cmdline").read_bytes():
                found = re.search(r"^Pss:\s+(\d+) kB", Path(f"/proc/{name}/smaps_rollup").read_text(), re.M)
                total += 1024 * int(found[1]) if found else 0
        except OSError:
            continue
    return total


def report() -> None:
    """Run it; about five minutes on two cores."""
    folder = Path(tempfile.mkdtemp(prefix="dlt-"))
    os.environ |= {"DLPAR_RUNTIME": str(folder / "r"), "DLPAR_HOME": str(folder / "home")}
    (folder / "labs").mkdir()
    shutil.copy(ROOT / "labs" / "00_first_parallel_run.ipynb", folder / "labs")
    names = [f"student{n:02}" for n in range(STUDENTS)]
    hub = Hub(folder, f"--users={','.join(names)}", "--teachers=teacher")
    try:
        hub.wait_until_up()
        watch = Watch(hub)
        os.nice(10)  # in a class this process is thirty browsers, each on a machine of its own
        try:
            with ThreadPoolExecutor(STUDENTS) as everybody:
                _class(hub, names, everybody, watch)
        finally:
            answered = watch.stop()
        for what, answers in answered.items():
            print(
                f"while {what}, the hub answered {len(answers)} times: median {statistics.median(answers):.3f} s, "
                f"slowest {max(answers):.3f} s (bar {ANSWER:g} s{'' if max(answers) < ANSWER else ': MISSED'})"
            )
        print(
            f"memory at most {watch.most / 2**30:.2f} GiB "
            f"(bar {MEMORY / 2**30:g}{'' if watch.most < MEMORY else ': MISSED'})"
        )
    finally:
        hub.stop()
        shutil.rmtree(folder, ignore_errors=True)


def _class(hub: Hub, names: list[str], everybody: ThreadPoolExecutor, watch: Watch) -> None:
    began = time.monotonic()

    def arrive(name: str) -> float:
        hub.start_server(name)
        while not hub.is_ready(name):
            time.sleep(1.0)
        return time.monotonic() - began

    waits = list(everybody.map(arrive, names))
    print(f"{len(names)} servers asked for at once: ready after {_spread(waits)} s")
    print(f"  with no kernel: {weight(hub.process.pid) / 2**30:.2f} GiB")
    watch.now("kernels started")
    kernels = list(everybody.map(lambda name: Kernel(hub, name), names))
    list(everybody.map(lambda kernel: kernel.run(OPEN, 300), kernels))
    print(
        f"  with an idle kernel each, its panel shown and its fork server ready: "
        f"{weight(hub.process.pid) / 2**30:.2f} GiB",
        flush=True,
    )

    def work(kernel: Kernel) -> dict[str, Any]:
        try:
            return json.loads(kernel.run(JOB, 600))
        except (RuntimeError, TimeoutError) as error:
            said = re.sub(r"\x1b\[[\d;]*m", "", str(error)).strip().splitlines() or ["too slow"]
            return {"status": "failed", "reason": said[-1]}

    watch.now("jobs ran")
    told = list(everybody.map(work, kernels))
    done, failed = ([job for job in told if (job["status"] == "done") is good] for good in (True, False))
    print(
        f"a 4-rank job each, all pressed at once: done after {_spread([j['ended'] - j['came'] for j in done])} s, "
        f"each {_spread([j['ended'] - j['began'] for j in done])} s of it at work; {len(failed)} failed"
        f"{': ' + json.dumps(sorted({j['reason'] for j in failed})) if failed else ''}"
    )
    late = [max(0.0, (j["offered"] or math.inf) - OFFER) for j in done if j["began"] - j["came"] > OFFER]
    went = {a["joined"]: sum(a["joined"] < b["began"] < a["began"] for b in done) - a["ahead"] for a in done}
    beyond = max(went.values(), default=0)
    print(
        f"{len(late)} waited more than {OFFER:g} s; another way was offered after "
        f"{_spread([j['offered'] for j in done if j['offered']])} s{': TOO LATE' if any(late) else ''}; "
        f"in the queue after {_spread([j['joined'] - j['came'] for j in done])} s; "
        f"nobody waited for more than {beyond} jobs beyond those said to be ahead "
        f"(bar 1{'' if beyond <= 1 else ': MISSED'})",
        flush=True,
    )


def _spread(seconds: list[float]) -> str:
    found = sorted(seconds) or [float("nan")]
    return f"{found[0]:.1f} to {found[-1]:.1f}, median {statistics.median(found):.1f}"
