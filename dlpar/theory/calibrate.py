"""Measurement of this machine as a platform. Real ranks measure its pace and its link."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from timeit import repeat
from typing import Any

from dlpar.config.experiment import BadExperiment, Experiment
from dlpar.config.paths import private_folder, runtime_folder
from dlpar.config.schema import shown
from dlpar.jobs.control_groups import cores
from dlpar.jobs.launch import Job, check_machine, spmd
from dlpar.theory.collectives import fitted
from dlpar.theory.layers import sizes
from dlpar.worlds.mpiexec import EAGER, hosts_of
from dlpar.worlds.platforms import Device, Link, Platform, platform
from dlpar.worlds.platforms.lookup import HERE, here_file
from dlpar.worlds.platforms.ping_pong import SIZES, there_and_back

STEPS, WARM = 80, 20
"""Number of steps of a run, and of first steps before times settle."""

QUICK, THOROUGH = 3, 9
"""Number of runs of each kind: while a reader waits, and when a user asks for a measurement."""

SMALL, LARGE = 64, 256
"""Two numbers of samples of a rank per step. They separate the time of a step from that of a sample."""

RANKS = 64
"""Maximum number of ranks that are started as real processes."""

LIMIT = 60.0
"""Seconds that a run may take."""

TRIES, CALLS = 20, 10
"""Number of measurements of an operation, and number of its calls in a measurement."""

FAR = (16, 1 << 20, 1 << 22)
"""Bytes of messages between hosts. Switches and rate limits pass the first 100 kB faster than long messages.
"""

SHORT = {"steps": STEPS, "evaluate_every": STEPS, "cluster": {"threads": 1, "device": "cpu"}}
"""Fields of every run's experiment. Runs use the CPU, because the link is measured between CPU processes."""


def calibrate(runs: int = QUICK, hostfile: str | None = None) -> Platform:
    """Measure this machine, and keep the figures as the platform ``here``.

    With a hostfile, the platform's nodes are the file's hosts, all like this machine, with the link of the
    first two.

    Parameters
    ----------
    runs : int
        Runs of each kind of training, at least 1.  Only the fastest counts, so more runs give steadier
        figures: 3 runs take about ten seconds, 9 runs half a minute.

    hostfile : str, optional
        An Open MPI hostfile with at least two hosts.

    Raises
    ------
    JobFailed, NoMPI, TimeoutError
        If ranks cannot be run here.
    BadExperiment
        If the file is not a hostfile, or names fewer hosts.
    """
    times, eager = spmd(lambda comm: (there_and_back(comm), comm.world.eager), workers=2, timeout=LIMIT)[0]
    cluster = between_hosts(hostfile) if hostfile else {"devices": RANKS, "eager": eager}
    several = cores() > 1  # otherwise ranks take turns, and an exchange shows only that
    alone = {"scaling": "weak", "averaging": {"method": "local", "period": STEPS}, **SHORT}
    few, many = (Experiment(workers=1 + several, batch=batch, **alone) for batch in (SMALL, LARGE))
    ring, server = Experiment(workers=2, **SHORT), Experiment(workers=2, sync="ps", **SHORT)
    seconds = step_seconds([few, many, ring, server] if several else [few, many], runs)
    device, link = computing(*seconds[:2]), fitted(SIZES, times)
    if several:
        link = in_training(link, device, *seconds[2:])
    source = (
        f"measured on {time.strftime('%Y-%m-%d')}: steps of the default model on two ranks, alone, in a ring and "
        f"with a server, and ping-pong messages; ranks beyond its {cores()} core{'s' * several} take turns"
    )
    inside = Link(_rounded(link.latency), _rounded(link.bandwidth))
    found = Platform(name=HERE, source=source, device=device, inside=inside, **cluster)
    file = private_folder(here_file().parent) / here_file().name
    file.write_text(found.model_dump_json(exclude_unset=True, indent=1) + "\n")
    return platform(HERE)


def between_hosts(hostfile: str) -> dict[str, Any]:
    """Return a platform's nodes, their devices and what lies between nodes, for the hosts of a hostfile.

    In training, half of the messages are sent while another message arrives.  If both directions share the
    capacity of the link or the processors, each is slower than alone.  So the result uses the mean of the
    times with and without sharing.
    """
    check_machine(Experiment(workers=2, cluster={"hostfile": hostfile}))
    hosts = hosts_of(hostfile)
    if len(hosts) < 2:
        got = f"cluster.hostfile: got {shown(hostfile)}"
        raise BadExperiment(f"{got}, allowed here is one of two hosts or more")
    measure = lambda comm: [there_and_back(comm, FAR, 9, both) for both in (False, True)]
    with tempfile.NamedTemporaryFile("w", suffix=".hosts", dir=runtime_folder()) as pair:
        pair.write("".join(f"{host} slots=1\n" for host in list(hosts)[:2]))
        pair.flush()
        alone, passing = spmd(measure, workers=2, timeout=LIMIT, hostfile=pair.name)[0]
    link = fitted(FAR, [(a + p) / 2 for a, p in zip(alone, passing)])
    devices = min(slots or cores() for slots in hosts.values())
    between = Link(_rounded(link.latency), _rounded(link.bandwidth))
    return {"eager": EAGER, "nodes": len(hosts), "devices": devices, "between": between}


def computing(few: float, many: float) -> Device:
    """Return a core as a device. Step times of the default model with `SMALL` and `LARGE` samples define it.

    A neighbour core does the same work, and the two exchange nothing before the last step.  So a step's time
    is an overhead and a constant time for each sample.
    """
    a_sample = (many - few) / (LARGE - SMALL) if many > few else many / LARGE
    overhead = max(0.0, many - LARGE * a_sample)
    flops = sizes(Experiment()).flops / a_sample
    return Device(name="a core of this machine", flops=_rounded(flops), overhead=_rounded(overhead))


def in_training(link: Link, device: Device, ring: float, server: float) -> Link:
    """Return the link between two training ranks. Its bandwidth explains their step times.

    In training a gradient comes from another core's cache and is added.  That takes
    longer than a ping-pong message.  In addition to computation, a step takes two latencies and ``k nbytes /
    bandwidth``.  k is 1 on a ring, and 3 with a server: the server receives two gradients one after the
    other, and sends its first answer during the second receive.
    """
    experiment = Experiment(workers=2)
    own = sizes(experiment)
    before = device.overhead + device.seconds(own.flops * experiment.local_batch(0)) + 2 * link.latency
    measured = [(1, ring), (3, server)]
    # Minimise the sum of ((before + k x) / seconds - 1)^2, where x = nbytes / bandwidth.
    x = sum(k * (seconds - before) / seconds**2 for k, seconds in measured)
    x /= sum((k / seconds) ** 2 for k, seconds in measured)
    return Link(link.latency, min(link.bandwidth, own.nbytes / x) if x > 0 else link.bandwidth)


def step_seconds(experiments: Sequence[Experiment], runs: int = QUICK) -> list[float]:
    """Return the time in seconds of a steady-state step of each experiment, from the fastest of several runs.

    In slower runs, ranks waited for a core.  Experiments take turns.  So a machine that is busy for a while
    disturbs all experiments, but none of them in all runs.
    """
    return [min(taken) for taken in zip(*([_step_seconds(e) for e in experiments] for _ in range(runs)))]


def _step_seconds(experiment: Experiment) -> float:
    """Return the median step time of a run in seconds, and delete the run."""
    with tempfile.TemporaryDirectory("", "spmd-", runtime_folder(), ignore_cleanup_errors=True) as name:
        folder = Path(name)
        (folder / "experiment.json").write_text(experiment.to_json())
        job = Job(folder, experiment)
        try:
            steps = job.wait(LIMIT).steps
        except TimeoutError:
            job.stop()
            raise
        return float(steps.groupby("rank")["t"].diff()[steps["step"] > WARM].median())


def _rounded(value: float) -> float:
    """Round to the significant digits of a measurement."""
    return float(f"{value:.3g}")


def fastest_us(operation: str, cases: Mapping[Any, tuple[tuple[int, ...], str]]) -> dict[Any, float]:
    """Measure the µs of an operation of torch on two tensors, in one thread. The fastest of `TRIES` counts.

    Parameters
    ----------
    operation : str
        Name in torch, such as ``"matmul"``.
    cases : mapping
        Shape and kind of numbers of both tensors, such as ``((32, 32), "float32")``, by name.
    """

    def on_rank(_: object) -> list[float]:
        import torch  # here: a kernel need not load it

        torch.set_num_threads(1)
        ones = (torch.ones(shape, dtype=getattr(torch, kind)) for shape, kind in cases.values())
        calls = [partial(getattr(torch, operation), each, each) for each in ones]
        return [1e6 * min(repeat(call, repeat=TRIES, number=CALLS)) / CALLS for call in calls]

    return dict(zip(cases, spmd(on_rank, workers=1)[0]))
