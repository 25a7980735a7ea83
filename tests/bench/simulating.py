"""The simulated world: messages a second on one core without gradients, and what whole runs take.

Beside it, as a yardstick of the machine's own speed, a bare loop of the simulation's two
dearest operations: an entry into and out of a heap, and a switch between greenlets.
"""

from __future__ import annotations

import heapq
import time
from functools import partial

from compare import in_turns, least, limit, show
from greenlet import getcurrent, greenlet

from dlpar import Experiment, launch
from dlpar.collectives import ring_allreduce
from dlpar.comm import ANY
from dlpar.worlds.platforms import Device, Link, Platform
from dlpar.worlds.simulated.run import run_program, simulated_world

PLATFORM = Platform(
    name="bench", device=Device(name="any", flops=1e13), nodes=8192, between=Link(50e-6, 25e9 / 8)
)
ROUNDS = 400


def ring(comm) -> None:
    """Tagged messages round a ring, each taken from whoever sends."""
    out, into = comm.empty(1000), comm.empty(1000)
    for _ in range(ROUNDS):
        comm.send(out, (comm.rank + 1) % comm.size, 7)
        comm.recv(into, ANY, 7)


def server(comm) -> None:
    """Rank 0 answers all others, 50 times: as often as in the whole run of 50 steps."""
    weights = comm.empty(1000)
    if comm.rank == 0:
        for _ in range(50 * (comm.size - 1)):
            comm.send(weights, comm.recv(weights).source, 1)
    else:
        for _ in range(50):
            comm.send(weights, 0, 2)
            comm.recv(weights, 0, 1)


def allreduce(comm) -> None:
    """One ring all-reduce of 170 MB."""
    ring_allreduce(comm, comm.empty(42_500_000))


def simulated(program, ranks: int) -> tuple[int, float]:
    """Messages sent, and seconds of the processor."""
    simulator, comms = simulated_world(list(range(ranks)), PLATFORM, computes=False)
    began = time.process_time()
    run_program(simulator, comms, program, patience=60)
    return sum(comm.traffic.messages for comm in comms), time.process_time() - began


def rate(program, ranks: int) -> float:
    messages, seconds = simulated(program, ranks)
    return messages / seconds


def bare(tasks: int = 256) -> float:
    """Switches a second between greenlets through a heap."""
    heap, done, main = [], 0, getcurrent()

    def run(name: int) -> None:
        for i in range(ROUNDS):
            heapq.heappush(heap, (i, name))
            main.switch()

    greenlets = [greenlet(run) for _ in range(tasks)]
    began = time.process_time()
    for name, task in enumerate(greenlets):
        task.switch(name)
    while heap:
        greenlets[heapq.heappop(heap)[1]].switch()
        done += 1
    return done / (time.process_time() - began)


def whole_run(**fields) -> float:
    """Seconds from launch to end."""
    began = time.perf_counter()
    launch(Experiment(**fields)).wait(300)
    return time.perf_counter() - began


def report() -> None:
    taken = in_turns(
        {
            "heap and switch": bare,
            "ring, any source": partial(rate, ring, 256),
            "server of 4,096": partial(rate, server, 4097),
        },
        n=5,
    )
    show("Simulated without gradients, on one core", taken, "messages/s")
    least("ring, tags and any source", taken["ring, any source"], "messages/s", bar=400_000)
    least("server of 4,096 workers", taken["server of 4,096"], "messages/s", bar=250_000)

    cluster = {"world": "simulated", "messages": "sizes", "stand_in_for": "resnet50"}
    asp = {"scheme": "ps", "consistency": "asp"}
    runs = in_turns(
        {
            "ring of 512": lambda: simulated(allreduce, 512)[1],
            "4,096 workers": partial(
                whole_run, workers=4096, steps=50, batch=32, scaling="weak", sync=asp, cluster=cluster
            ),
            "256 that train": partial(
                whole_run,
                workers=256,
                steps=79,
                batch=512,
                model="logistic",
                lr=2.0,
                sync=asp,
                cluster={"world": "simulated", "platform": "cpu-10gbe"},
            ),
        },
        n=3,
    )
    show("Whole simulations", runs, "s")
    limit("a ring all-reduce of 512 ranks", runs["ring of 512"], "s", bar=2)
    limit("4,096 workers of a server, 50 steps", runs["4,096 workers"], "s", bar=60)
    limit("256 asp workers, 20,000 updates", runs["256 that train"], "s", bar=30)
