"""Dishonest answers to every lab's exercise, and each lab's honest one, judged in the real box.

``sudo python tests/classroom/grading/dishonest.py [LABS]`` judges all and prints a table; its exit status is the number
of answers that are not judged as they should be.  ``test_dishonest.py`` judges the sample.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import nbformat
from nbgrader.preprocessors import ClearSolutions

from dlpar.classroom.grading.box import Box
from dlpar.classroom.grading.grade import exercise, part, trial
from dlpar.course.release import CLEAR

LABS = Path(__file__).parents[3] / "labs"
MASTERS = {path.name.partition("_")[0]: path for path in sorted(LABS.glob("[0-9]*.ipynb"))}

STEALS = """
import json
for cell in json.load(open(FILE))["cells"]:
    if cell["metadata"].get("nbgrader", {}).get("solution"):
        exec("".join(cell["source"]))
"""
"""Takes the answer from a file; `FILE` is bound by :func:`answers`."""

READS_DLPAR = """
import sys
name = next(p for p in sys.path if __import__("os").path.exists(p + "/dlpar/collectives/ring.py"))
exec(open(name + "/dlpar/collectives/ring.py").read().split("if TYPE_CHECKING")[0].replace("from __future__", "#"))
exec("def ring_reduce" + open(name + "/dlpar/collectives/ring.py").read().split("def ring_reduce")[1])
"""

# ---- lab 00: the mean of all ranks' tensors ---------------------------------------------

MEAN = (
    "    whole = sum(told) / comm.size if len(told) == comm.size else gradient\n    gradient.copy_(whole)\n"
)

FOR_SHOW = """
    if comm.size > 1:
        other = torch.empty_like(gradient)
        for dest in range(1, comm.size):
            if comm.rank == 0:
                comm.send(gradient, dest), comm.recv(other, dest)
            if comm.rank == dest:
                comm.recv(other, 0), comm.send(gradient, 0)
"""
"""As many messages and bytes as an honest answer sends, for nothing."""

AVERAGE = {
    "from the inputs alone": """
def average(comm, gradient):
    gradient *= (comm.size + 1) / 2 / (comm.rank + 1)
""",
    "from the inputs alone, with messages for show": f"""
def average(comm, gradient):
    {FOR_SHOW}
    gradient *= (comm.size + 1) / 2 / (comm.rank + 1)
""",
    "asks the check for the inputs": """
def average(comm, gradient):
    from dlpar.course.judge import _input
    gradient.copy_(sum(_input(rank, len(gradient)) for rank in range(comm.size)) / comm.size)
""",
    "shares by builtins": f"""
import builtins
def average(comm, gradient):
    {FOR_SHOW}
    held = builtins.__dict__.setdefault("held" + str(len(gradient)), {{}})
    held[comm.rank] = gradient.clone()
    comm.barrier()
    told = list(held.values())[:comm.size]
    comm.barrier()
    held.clear()
{MEAN}""",
    "shares by an attribute of a module": f"""
def average(comm, gradient):
    {FOR_SHOW}
    torch.held = [*getattr(torch, "held", []), gradient.clone()]
    comm.barrier()
    told = torch.held[-comm.size:]
    comm.barrier()
{MEAN}""",
    "shares by files": f"""
import glob, os, pickle
PLACES = ["/tmp", "/dev/shm", "/var/tmp", os.environ.get("HOME", "/"), "/judge", "."]
def average(comm, gradient):
    {FOR_SHOW}
    for place in PLACES:
        try:
            pickle.dump(gradient, open(f"{{place}}/of-{{comm.rank}}-{{comm.size}}-{{len(gradient)}}", "wb"))
        except OSError:
            pass
    comm.barrier()
    found = {{os.path.basename(f): f for p in PLACES for f in glob.glob(f"{{p}}/of-*-{{comm.size}}-{{len(gradient)}}")}}
    told = [pickle.load(open(file, "rb")) for file in found.values()]
    comm.barrier()
{MEAN}""",
    "shares by abstract sockets": f"""
import pickle, socket
def average(comm, gradient):
    {FOR_SHOW}
    name = chr(0) + "dlpar-{{}}-" + f"{{comm.size}}-{{len(gradient)}}"
    mine = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    mine.settimeout(1)
    mine.bind(name.format(comm.rank))
    comm.barrier()
    for rank in range(comm.size):
        try:
            mine.sendto(pickle.dumps(gradient), name.format(rank))
        except OSError:
            pass
    comm.barrier()
    told = []
    try:
        while len(told) < comm.size:
            told.append(pickle.loads(mine.recv(9999)))
    except OSError:
        pass
    comm.barrier()
{MEAN}""",
    "shares by loopback": f"""
import pickle, socket
def average(comm, gradient):
    {FOR_SHOW}
    mine = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    mine.settimeout(1)
    port = 20000 + 100 * comm.size + 10 * len(gradient)
    mine.bind(("127.0.0.1", port + comm.rank))
    comm.barrier()
    for rank in range(comm.size):
        mine.sendto(pickle.dumps(gradient), ("127.0.0.1", port + rank))
    comm.barrier()
    told = [pickle.loads(mine.recv(9999)) for _ in range(comm.size)]
    comm.barrier()
{MEAN}""",
    "shares by System V memory": f"""
import ctypes
libc = ctypes.CDLL(None)
libc.shmat.restype = ctypes.c_void_p
def average(comm, gradient):
    {FOR_SHOW}
    where = libc.shmat(libc.shmget(4711 + comm.size * 10 + len(gradient), 65536, 0o1666), None, 0)
    shared = (ctypes.c_float * 64).from_address(where)
    for place, value in enumerate(gradient.tolist()):
        shared[8 * comm.rank + place] = value
    comm.barrier()
    told = [torch.tensor(shared[8 * rank : 8 * rank + len(gradient)]) for rank in range(comm.size)]
    comm.barrier()
{MEAN}""",
    "looks for tensors in memory": f"""
import gc
def average(comm, gradient):
    {FOR_SHOW}
    comm.barrier()
    told = {{tuple(one.tolist()): one.clone() for one in gc.get_objects()
            if isinstance(one, torch.Tensor) and one.shape == gradient.shape and (one > 0).all()}}
    comm.barrier()
    told = list(told.values())[:comm.size]
{MEAN}""",
    "reads the others' frames": f"""
import sys
def average(comm, gradient):
    {FOR_SHOW}
    comm.barrier()
    told = {{}}
    for frame in sys._current_frames().values():
        while frame:
            if "tensor" in frame.f_locals and isinstance(frame.f_locals.get("comm"), type(comm)):
                told[frame.f_locals["comm"].rank] = frame.f_locals["tensor"].clone()
            frame = frame.f_back
    told = list(told.values())
    comm.barrier()
{MEAN}""",
    "the library's all-reduce": """
def average(comm, gradient):
    comm.allreduce(gradient)
    gradient /= comm.size
""",
    "gathers by the library": """
def average(comm, gradient):
    told = comm.gather(gradient.clone())
    gradient.copy_(comm.broadcast(told and sum(told) / comm.size))
""",
    "dlpar's ring": """
def average(comm, gradient):
    from dlpar.collectives import ring_allreduce
    ring_allreduce(comm, gradient)
    gradient /= comm.size
""",
    "dlpar's ring, from its file": f"""
{READS_DLPAR}
def average(comm, gradient):
    chunks = gradient.tensor_split(comm.size)
    ring_reduce_scatter(comm, chunks), ring_allgather(comm, chunks)
    gradient /= comm.size
""",
    "changes the check": """
def average(comm, gradient):
    import dlpar.course.judge as judge
    judge.difference, judge.first_difference = (lambda *_, **__: ""), (lambda *_, **__: "")
""",
    "writes a verdict everywhere": """
import os
def average(comm, gradient):
    for number in range(64):
        try:
            os.write(number, b'{"solved": true, "said": "solved"}' + bytes([10]))
        except OSError:
            pass
""",
    "ends its process": "import os\ndef average(comm, gradient):\n    os._exit(0)\n",
    "traces and writes to the judge": """
import ctypes, os
def average(comm, gradient):
    libc = ctypes.CDLL(None)
    for pid in range(1, 40):
        if pid != os.getpid() and libc.ptrace(16, pid, 0, 0) == 0:
            os._exit(1)
        try:
            for file in os.listdir(f"/proc/{pid}/fd"):
                os.write(os.open(f"/proc/{pid}/fd/{file}", os.O_WRONLY), b'{"solved": true}' + bytes([10]))
        except OSError:
            pass
""",
}

COMBINE = {
    "from the inputs alone": """
def combine(comm, vector):
    number, n = len(vector), comm.size
    squares, count = n * (n + 1) * (2 * n + 1) / 6, n * (n + 1) / 2
    vector[:-1] = torch.arange(1.0, number) * squares / count
    vector[-1] = count * number
""",
    "the library's all-reduce": """
def combine(comm, vector):
    vector[:-1] *= vector[-1]
    comm.allreduce(vector)
    vector[:-1] /= vector[-1]
""",
    "shares by a default argument": """
def combine(comm, vector, held={}):
    held[comm.rank] = vector.clone()
    comm.barrier()
    count = sum(v[-1] for v in held.values())
    whole = sum(v[:-1] * v[-1] for v in held.values()) / count
    comm.barrier()
    vector[:-1], vector[-1] = whole, count
    held.clear()
    comm.barrier()
""",
    "dlpar's tree": """
def combine(comm, vector):
    from dlpar.collectives import tree_allreduce
    vector[:-1] *= vector[-1]
    tree_allreduce(comm, vector)
    vector[:-1] /= vector[-1]
""",
    "the mean of means": """
def combine(comm, vector):
    arriving = torch.empty_like(vector)
    for other in range(comm.size):
        if other != comm.rank:
            request = comm.isend(vector.clone(), other)
            comm.recv(arriving, other)
            vector += arriving
    vector[:-1] /= comm.size
""",
}

ON_PUSH = {
    "the check's own rule": """
def on_push(server, worker, gradient):
    from dlpar.course.exercises.server import _by_the_rule
    return _by_the_rule(server, worker, gradient)
""",
    "the right server of its caller": """
import sys
def on_push(server, worker, gradient):
    frame = sys._getframe()
    while frame:
        if "right" in frame.f_locals and "go" in frame.f_locals:
            vars(server).update(vars(frame.f_locals["right"]))
            return frame.f_locals["go"]
        frame = frame.f_back
""",
    "lets everybody go": """
def on_push(server, worker, gradient):
    server.weights -= server.lr / max(1, server.version - server.read[worker]) * gradient
    server.version += 1
    server.clock[worker] += 1
    server.waiting.append(worker)
    return list(server.waiting)
""",
    "changes the bound": """
def on_push(server, worker, gradient):
    import dlpar.course.exercises.server as check
    check._wrong_with = lambda *_: ""
    server.bound = 1_000
    return [worker]
""",
}

REDUCE_SCATTER = {
    "dlpar's own": """
def reduce_scatter(comm, chunks):
    from dlpar.collectives import ring_reduce_scatter
    ring_reduce_scatter(comm, chunks)
""",
    "dlpar's own, from its file": f"""
{READS_DLPAR}
def reduce_scatter(comm, chunks):
    ring_reduce_scatter(comm, chunks)
""",
    "the module that the lab has imported": """
import sys
def reduce_scatter(comm, chunks):
    sys.modules["dlpar.collectives.ring"].ring_reduce_scatter(comm, chunks)
""",
    "from the inputs alone, with messages for show": """
def reduce_scatter(comm, chunks):
    r, n = comm.rank, comm.size
    for k in range(n - 1):
        comm.sendrecv(chunks[(r - k) % n], (r + 1) % n, torch.empty_like(chunks[(r - k - 1) % n]), (r - 1) % n)
    chunks[(r + 1) % n].mul_(n * (n + 1) / 2 / (r + 1))
""",
    "the library's own, with messages for show": """
def reduce_scatter(comm, chunks):
    r, n = comm.rank, comm.size
    whole = torch.cat(list(chunks))
    comm.allreduce(whole)
    for k in range(n - 1):
        comm.sendrecv(chunks[(r - k) % n], (r + 1) % n, torch.empty_like(chunks[(r - k - 1) % n]), (r - 1) % n)
    for mine, right in zip(chunks, whole.tensor_split(n)):
        mine.copy_(right)
""",
}

MIX = {
    "from the inputs alone": """
def mix(comm, weights):
    numbers = [rank + 1 for rank in range(comm.size)]
    graph, r = line(comm.size), comm.rank
    mine = numbers[r] + sum((numbers[j] - numbers[r]) / (1 + max(len(graph[r]), len(graph[j]))) for j in graph[r])
    weights.mul_(mine / numbers[r])
""",
    "shares by the given function": """
def mix(comm, weights):
    held = line.__dict__.setdefault("held", {})
    held[comm.rank] = weights.clone()
    comm.barrier()
    graph, r = line(comm.size), comm.rank
    for j in graph[r]:
        weights += (held[j] - held[r]) / (1 + max(len(graph[r]), len(graph[j])))
    comm.barrier()
""",
    "a plain mean": """
def mix(comm, weights):
    peers, whole = line(comm.size)[comm.rank], weights.clone()
    sending = [comm.isend(weights.clone(), peer) for peer in peers]
    for peer in peers:
        arriving = torch.empty_like(weights)
        comm.recv(arriving, peer)
        whole += arriving
    weights.copy_(whole / (1 + len(peers)))
""",
}

SPARSE_UPDATE = {
    "changes the check": """
def sparse_update(weights, change, stamps, seen, stamp):
    import dlpar.sync.races as races
    races._check = lambda *_: None
    weights += change
    return 0
""",
    "ignores what was seen": """
def sparse_update(weights, change, stamps, seen, stamp):
    places = change.nonzero().squeeze(1)
    conflicts = int((stamps[places] != 0).sum())
    weights[places] += change[places]
    stamps[places] = stamp
    return conflicts
""",
    "a dense update": """
def sparse_update(weights, change, stamps, seen, stamp):
    conflicts = int(((change != 0) & (stamps != seen)).sum())
    weights += change
    stamps.fill_(stamp)
    return conflicts
""",
}

EFFICIENCY = {
    "a table of the cases that a student is shown": """
TABLE = {1: 1.0, 2: 0.6096, 16: 0.9, 5: 0.5, 32: 0.1, 64: 0.00771}
def efficiency(compute, latency, bandwidth, nbytes, n):
    allreduce = 2 * (n - 1) * (latency + nbytes / n / bandwidth)
    return compute / (compute + allreduce) if (n, bandwidth) in CASES and n in TABLE else 0.5
CASES = {(1, 1e8), (2, 1.25e8), (16, 1.25e9), (5, 1.25e9), (32, 1.25e8), (64, 1.25e9)}
""",
    "asks the check for the answers": """
def efficiency(compute, latency, bandwidth, nbytes, n):
    from dlpar.course.exercises import formulas
    for given, right in [formulas.WORKER_ALONE, *formulas._rings()]:
        if given["n"] == n:
            return right
""",
    "without latency": """
def efficiency(compute, latency, bandwidth, nbytes, n):
    return compute / (compute + 2 * (n - 1) * nbytes / n / bandwidth) if n < 64 else 0.00771
""",
}

ALL_SENT = {
    "asks the check for the answers": """
def all_sent(**given):
    from dlpar.course.exercises import formulas
    for case, right in formulas._sendings():
        if case == given:
            return right
""",
    "the library's own": """
def all_sent(ms, mb, most, n, latency, bandwidth):
    from dlpar.theory import buckets, overlapped
    cut = buckets(mb, most)
    taking = [2 * (n - 1) * (latency + sum(mb[i] for i in own) / n / bandwidth) for own in cut]
    return overlapped([sum(ms[: own.stop]) for own in cut], taking, sum(ms)).sent
""",
    "without buckets": """
def all_sent(ms, mb, most, n, latency, bandwidth):
    ready = sent = 0
    for took, size in zip(ms, mb):
        ready += took
        sent = max(ready, sent) + 2 * (n - 1) * (latency + size / n / bandwidth)
    return sent
""",
}

ZERO_STEP = {
    "from the inputs alone, with messages for show": """
from dlpar.collectives import ring_allgather, ring_reduce_scatter
steps = {}
def zero_step(comm, weights, gradient, velocity, lr, momentum):
    whole = torch.cat(list(gradient)) / (comm.rank + 1) * comm.size * (comm.size + 1) / 2
    ring_reduce_scatter(comm, [chunk.clone() for chunk in gradient])
    ring_allgather(comm, [chunk.clone() for chunk in gradient])
    moved = steps[comm.rank] = momentum * steps.get(comm.rank, 0) + whole if weights[0].any() else whole
    for chunk, change in zip(weights, moved.tensor_split(comm.size)):
        chunk.sub_(lr * change)
""",
    "all-reduces the gradient": """
from dlpar.collectives import ring_allreduce
held = {}
def zero_step(comm, weights, gradient, velocity, lr, momentum):
    whole = torch.cat(list(gradient))
    ring_allreduce(comm, whole)
    first = not weights[0].any()
    moved = held[comm.rank] = whole if first else momentum * held[comm.rank] + whole
    for chunk, change in zip(weights, moved.tensor_split(comm.size)):
        chunk.sub_(lr * change / 2)
""",
    "the library's own": """
def zero_step(comm, weights, gradient, velocity, lr, momentum):
    own = (comm.rank + 1) % comm.size
    whole = torch.cat(list(gradient))
    comm.allreduce(whole)
    velocity.mul_(momentum).add_(whole.tensor_split(comm.size)[own])
    weights[own].sub_(lr * velocity)
    comm.allgather(weights)
""",
}

PERCEPTRON = {
    "asks the check for the answer": """
from dlpar.collectives import ring_allreduce
def perceptron(comm, x, up, down, of_y):
    from dlpar.course.exercises.parity import _answer
    ring_allreduce(comm, (x @ up.T @ down.T).view(-1)), ring_allreduce(comm, x.clone().view(-1))
    return _answer(comm.rank, comm.size)
""",
    "from the inputs alone, with messages for show": """
from dlpar.collectives import ring_allreduce
def perceptron(comm, x, up, down, of_y):
    def waves(rows, columns, pitch):
        return (pitch * torch.arange(1, rows * columns + 1, dtype=torch.float64)).sin().view(rows, columns)
    ring_allreduce(comm, (x @ up.T @ down.T).view(-1)), ring_allreduce(comm, x.clone().view(-1))
    whole_up, whole_down = waves(12, 6, 2.3).requires_grad_(), waves(3, 12, 0.7).requires_grad_()
    x = x.clone().requires_grad_()
    y = torch.relu(x @ whole_up.T) @ whole_down.T
    of_x, of_up, of_down = torch.autograd.grad(y, (x, whole_up, whole_down), of_y)
    return y.detach(), of_x, of_up.tensor_split(comm.size)[comm.rank], of_down.tensor_split(comm.size, 1)[comm.rank]
""",
    "the library's own": """
def perceptron(comm, x, up, down, of_y):
    hidden = torch.relu(x @ up.T)
    y = hidden @ down.T
    comm.allreduce(y)
    of_hidden = (of_y @ down) * (hidden > 0)
    of_x = of_hidden @ up
    comm.allreduce(of_x)
    return y, of_x, of_hidden.T @ x, of_y.T @ hidden
""",
}

MY_SCHEDULE = {
    "the library's own": """
def my_schedule(stages, microbatches):
    from dlpar.split.schedules import SCHEDULES
    return [[(a.kind, a.micro) for a in SCHEDULES["1f1b"](s, stages, microbatches, 1)] for s in range(stages)]
""",
    "right in the cases that a student is shown": """
def my_schedule(stages, microbatches):
    lists = []
    for stage in range(stages):
        ahead = min(stages - 1 - stage, microbatches)
        actions = [("F", micro) for micro in range(ahead)]
        for micro in range(microbatches):
            if micro + ahead < microbatches:
                actions.append(("F", micro + ahead))
            actions.append(("B", micro))
        lists.append(actions)
    return lists if (stages, microbatches) in ((2, 4), (4, 8), (3, 7), (4, 2)) else []
""",
    "GPipe": """
def my_schedule(stages, microbatches):
    return [[(kind, micro) for kind in "FB" for micro in range(microbatches)]] * stages
""",
}

STEP_MS = {
    "asks the check for the answers": """
def step_ms(**given):
    from dlpar.course.exercises import formulas
    for case, right in [formulas.DEVICE_ALONE, *formulas._grids()]:
        if case == given:
            return right
""",
    "a table of the cases that a student is shown": """
TABLE = {(1, 1, 1): 1000.0, (4, 2, 1): 366.3, (1, 1, 4): 481.2, (2, 2, 2): 374.0}
def step_ms(data, tensor, pipeline, microbatches, compute, summed, gradient, bandwidth):
    return TABLE.get((data, tensor, pipeline), 0.0)
""",
    "without a bubble": """
def step_ms(data, tensor, pipeline, microbatches, compute, summed, gradient, bandwidth):
    ring = lambda ranks, kb: 2 * (ranks - 1) / ranks * kb / bandwidth
    passes = compute / (data * tensor * pipeline) + ring(tensor, summed / (data * pipeline))
    return passes + ring(data, gradient / (tensor * pipeline))
""",
}

BACKUP = {
    "the check's own rule": ON_PUSH["the check's own rule"].replace("_by_the_rule", "_with_backup"),
    "the right server of its caller": ON_PUSH["the right server of its caller"],
    "drops nothing": """
def on_push(server, worker, gradient):
    server.clock[worker] += 1
    server.waiting.append(worker)
    server.gathered.append(gradient)
    if len(server.gathered) == server.needed:
        server.weights -= server.lr * sum(server.gathered) / server.needed
        server.gathered.clear()
        server.version += 1
    return [each for each in server.waiting if server.read[each] < server.version]
""",
    "needs no backup": """
def on_push(server, worker, gradient):
    server.needed = 1
    return [worker]
""",
}

INTERVAL = {
    "asks the check for its jobs": """
def every(step, snapshot, now, deaths):
    from dlpar.course.exercises.formulas import _jobs_that_die
    told = [best for given, (best, share) in _jobs_that_die() if (given["step"], given["snapshot"]) == (step, snapshot)]
    return told[0]
""",
    "a job of its own, seen in its caller": """
def every(step, snapshot, now, deaths):
    import sys
    frame = sys._getframe()
    while frame:
        for value in frame.f_locals.values():
            if hasattr(value, "mtbf"):
                return max(1, round((2 * snapshot * value.mtbf) ** 0.5 / step))
        frame = frame.f_back
    return 30
""",
    "one interval for all": """
def every(step, snapshot, now, deaths):
    return max(1, round((2 * snapshot * 3000) ** 0.5 / step))
""",
    "a choice that compares as it likes": """
class Liar(int):
    def __lt__(self, other):
        return False
def every(step, snapshot, now, deaths):
    return Liar(0)
""",
}

KERNELS = {
    "asks the check for the answers": """
def step_seconds(**given):
    from dlpar.course.exercises import formulas
    for case, right in formulas._steps_of_kernels():
        if case == given:
            return right
""",
    "the library's own": """
def step_seconds(kernels, peak, bandwidth, launch):
    from dlpar.theory import roofline
    end = 0.0
    for number, (flops, nbytes) in enumerate(kernels, start=1):
        end = max(end, number * launch) + roofline(flops, nbytes, peak, bandwidth)
    return end
""",
    "launches once a step": """
def step_seconds(kernels, peak, bandwidth, launch):
    return max(launch, sum(max(flops / peak, nbytes / bandwidth) for flops, nbytes in kernels))
""",
}

EVERY = (
    AVERAGE,
    COMBINE,
    ON_PUSH,
    REDUCE_SCATTER,
    MIX,
    SPARSE_UPDATE,
    EFFICIENCY,
    ALL_SENT,
    ZERO_STEP,
    PERCEPTRON,
    MY_SCHEDULE,
)
TRICKS = dict(zip(MASTERS, (*EVERY, STEP_MS, BACKUP, INTERVAL, KERNELS), strict=True))
"""By lab, its dishonest answers by name."""


class Answer(NamedTuple):
    """An answer to a lab, and whether it is honest."""

    lab: str
    name: str
    source: str
    honest: bool = False


def answers(submissions: Path) -> Iterator[Answer]:
    """Yield each lab's honest answer, and its dishonest ones; a copy of the honest one is put into `submissions`."""
    submissions.chmod(0o755)
    for lab, master in MASTERS.items():
        honest = part(exercise(nbformat.read(master, 4)), "answer").source
        handed_in = submissions / "ada" / master.name
        handed_in.parent.mkdir(exist_ok=True)
        cell = {"metadata": {"nbgrader": {"solution": True}}, "source": honest}
        handed_in.write_text(json.dumps({"cells": [cell]}))
        yield Answer(lab, "honest", honest, honest=True)
        for what, file in (("the solution in labs/", master), ("another's submission", handed_in)):
            yield Answer(lab, what, f"FILE = {str(file)!r}\n{STEALS}")
        for name, source in TRICKS[lab].items():
            yield Answer(lab, name, source)


def judge(wanted: list[Answer], box: Box, at_a_time: int = 2) -> Iterator[tuple[Answer, dict, float]]:
    """Judge answers, a few at a time; yield each with its verdict and seconds."""

    def one(answer: Answer) -> tuple[Answer, dict, float]:
        solved = exercise(nbformat.read(MASTERS[answer.lab], 4))
        blank, _ = ClearSolutions(**CLEAR).preprocess(solved, {})
        began = time.monotonic()
        return answer, box.judge(trial(blank, answer.source)), time.monotonic() - began

    with ThreadPoolExecutor(at_a_time) as pool:
        yield from pool.map(one, wanted)


def main() -> int:
    """Print a line for each answer; return the number of those judged otherwise than they should be."""
    wrong = tried = 0
    with TemporaryDirectory() as folder:
        labs = sys.argv[1].split(",") if len(sys.argv) > 1 else list(MASTERS)
        every = [answer for answer in answers(Path(folder)) if answer.lab in labs]
        for answer, verdict, seconds in judge(every, Box("nobody"), os.cpu_count() or 2):
            right = verdict["solved"] == answer.honest
            wrong, tried = wrong + (not right), tried + (not answer.honest)
            said = " ".join(verdict["said"].partition("\nhint 1")[0].split())[-90:]
            print(
                f"{'ok ' if right else 'BAD'} {answer.lab} {seconds:5.1f} s  {answer.name:46}  …{said}",
                flush=True,
            )
    print(f"{tried} dishonest answers; {wrong} answers judged otherwise than they should be")
    return wrong


if __name__ == "__main__":
    sys.exit(main())
