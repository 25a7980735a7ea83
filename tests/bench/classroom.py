"""``make bench BENCH=hub``: a class of thirty on one hub, by its own API and real kernels.

Listed accounts, all on this machine.  Said are: how long students wait for their servers, what thirty idle
notebooks take, how quickly the hub answers meanwhile, and how a 4-rank job of each of them fares.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import statistics
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from hub.classroom import Hub, Kernel  # noqa: E402

STUDENTS = int(os.environ.get("DLPAR_BENCH_STUDENTS", "30"))
ANSWER, MEMORY = 1.0, 12 << 30
"""The bars: seconds in which the hub answers, and bytes of thirty idle notebooks with the running jobs."""

OPEN = "import dlpar; from dlpar import lab; print(1)"
JOB = """
import dlpar, time
began = time.time()
run = dlpar.launch(dlpar.Experiment(workers=4, steps=100)).wait()
print(time.time() - began, run.status)
"""


class Watch:
    """Asks the hub every half second how it is, from beside, and adds up what its processes take."""

    def __init__(self, hub: Hub) -> None:
        self.hub, self.answers, self.most, self.done = hub, [], 0, threading.Event()
        self.threads = [threading.Thread(target=work, daemon=True) for work in (self._ask, self._weigh)]
        for thread in self.threads:
            thread.start()

    def _ask(self) -> None:
        while not self.done.wait(0.5):
            began = time.monotonic()
            self.hub.ask("/hub/api/users?limit=100")
            self.answers.append(time.monotonic() - began)

    def _weigh(self) -> None:
        while not self.done.wait(5.0):
            self.most = max(self.most, weight(self.hub.process.pid))

    def stop(self) -> None:
        self.done.set()
        for thread in self.threads:
            thread.join()


def weight(root: int) -> int:
    """Bytes of a process, of all below it and of the class's fork servers and ranks, shared pages counted once."""
    from dlpar.launcher.processes import descendants

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
        with ThreadPoolExecutor(STUDENTS) as everybody:
            _class(hub, names, everybody)
        watch.stop()
        slowest = sorted(watch.answers)
        print(f"the hub answered {len(slowest)} times: median {statistics.median(slowest):.3f} s, "
              f"slowest {slowest[-1]:.3f} s (bar {ANSWER:g} s{'' if slowest[-1] < ANSWER else ': MISSED'})")
        print(f"memory at most {watch.most / 2**30:.2f} GiB "
              f"(bar {MEMORY / 2**30:g}{'' if watch.most < MEMORY else ': MISSED'})")
    finally:
        hub.stop()
        shutil.rmtree(folder, ignore_errors=True)


def _class(hub: Hub, names: list[str], everybody: ThreadPoolExecutor) -> None:
    began = time.monotonic()

    def arrive(name: str) -> float:
        hub.start_server(name)
        while not hub.is_ready(name):
            time.sleep(1.0)
        return time.monotonic() - began

    waits = list(everybody.map(arrive, names))
    print(f"{len(names)} servers asked for at once: ready after {_spread(waits)} s")
    print(f"  with no kernel: {weight(hub.process.pid) / 2**30:.2f} GiB")
    kernels = [Kernel(hub, name) for name in names]
    list(everybody.map(lambda kernel: kernel.run(OPEN, 300), kernels))
    print(f"  with an idle kernel each that has imported dlpar: {weight(hub.process.pid) / 2**30:.2f} GiB", flush=True)

    def work(kernel: Kernel) -> tuple[float, str]:
        try:
            seconds, status = kernel.run(JOB, 600).split()
            return float(seconds), status
        except RuntimeError as error:
            return float("nan"), re.sub(r"\x1b\[[\d;]*m", "", str(error)).strip().splitlines()[-1]

    done = list(everybody.map(work, kernels))
    failed = [how for _, how in done if how != "done"]
    print(f"a 4-rank job each, all pressed at once: done after {_spread([s for s, how in done if how == 'done'])} s; "
          f"{len(failed)} failed{': ' + json.dumps(sorted(set(failed))) if failed else ''}")


def _spread(seconds: list[float]) -> str:
    found = sorted(seconds) or [float("nan")]
    return f"{found[0]:.1f} to {found[-1]:.1f}, median {statistics.median(found):.1f}"
