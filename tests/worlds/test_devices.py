"""Tensors live where they should: a rank's on its GPU, and the host waits for that as seldom as can be.

There need not be a GPU: its place is taken by torch's meta device, whose tensors have no numbers.
What mixes them with tensors of the host, or asks for a number, is seen as it happens.
"""

from __future__ import annotations

import gc
import json
import warnings
from collections import Counter
from functools import partial
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from simulations import run
from torch.utils._python_dispatch import TorchDispatchMode
from trained_ranks import Kept

from dlpar import Experiment
from dlpar.comm import base
from dlpar.comm.base import Arrival, Comm, Traffic, World
from dlpar.data import Dataset
from dlpar.delays import Delays
from dlpar.jobs.record import AHEAD, DeviceClock, Recorder
from dlpar.split import zero
from dlpar.train import serve, train
from dlpar.worlds.mpi import DeviceTraffic
from dlpar.worlds.nccl import DistributedComm
from dlpar.worlds.nccl import _UnderWay as UnderWay
from dlpar.worlds.simulated.comm import Side, SimulatedComm

GPU = torch.device("meta")

# ---- where tensors live --------------------------------------------------------------------

aten = torch.ops.aten
COPIES = (aten.copy_.default, aten._to_copy.default)
"""What may have one device's tensors in and another's out."""


class Watch(TorchDispatchMode):
    """Has the meta device behave like a GPU: refuses to mix, and counts how often the host waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: Counter[str] = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        tensors = [a for a in torch.utils._pytree.tree_leaves((args, kwargs)) if isinstance(a, torch.Tensor)]
        on_gpu = [t.device == GPU for t in tensors]
        if function is aten._local_scalar_dense.default and on_gpu[0]:
            self.waits["number"] += 1
            return 1.0
        if function in COPIES:
            return self._copied(function, args, kwargs)
        # A GPU takes a single number of the host's as an argument of its kernel.
        mixed = any(on_gpu) and any(not on and t.dim() for on, t in zip(on_gpu, tensors))
        assert not mixed, f"{function} mixes devices: {[(str(t.device), tuple(t.shape)) for t in tensors]}"
        return function(*args, **kwargs)

    def _copied(self, function, args, kwargs):
        into, source = (
            (args[0], args[1]) if function is aten.copy_.default else (kwargs.get("device"), args[0])
        )
        target = into.device if isinstance(into, torch.Tensor) else into or source.device
        if source.device == GPU and target != GPU:
            self.waits["to host"] += 1
            dtype = kwargs.get("dtype") or source.dtype
            return into if isinstance(into, torch.Tensor) else torch.zeros(source.shape, dtype=dtype)
        at_leisure = kwargs.get("non_blocking") or args[2:] == (True,)
        if source.device != GPU and target == GPU and source.dim() and not at_leisure:
            self.waits["to GPU"] += 1
        return function(*args, **kwargs)


class KeptWaits(Kept):
    """Keeps how often the host had waited by the end of each step."""

    def __init__(self, comm, watch: Watch) -> None:
        super().__init__(comm)
        self.watch, self.waits = watch, []

    def step(self, step: int, **facts) -> None:
        super().step(step, **facts)
        self.waits.append(Counter(self.watch.waits))


@pytest.fixture
def meta(monkeypatch):
    """Simulated ranks whose tensors live on the meta device."""
    monkeypatch.setattr(SimulatedComm, "device", GPU)
    monkeypatch.setattr(SimulatedComm, "empty", Comm.empty)
    beside = Side._run

    def watched(side):
        with Watch():
            beside(side)

    monkeypatch.setattr(Side, "_run", watched)
    # Tied weights stay one on their way to another device, and a weight keeps its attributes, as on a GPU.
    torch.__future__.set_swap_module_params_on_conversion(True)
    swap = torch.utils.swap_tensors

    def swapped(moving, moved):
        vars(moved).update(vars(moving))
        swap(moving, moved)

    monkeypatch.setattr(torch.utils, "swap_tensors", swapped)
    yield
    torch.__future__.set_swap_module_params_on_conversion(False)


SHORT = {"steps": 6, "evaluate_every": 1000, "batch": 12, "model": {"width": 16}}


def waits(**fields) -> list[Counter]:
    """How often each worker's host waited for its GPU in the last step of a short run, by what for."""
    experiment = Experiment(**{**SHORT, **fields})

    def program(comm):
        if comm.rank >= experiment.workers:
            with Watch():
                return serve(comm, experiment, base.Recorder())
        watch = Watch()
        record = KeptWaits(comm, watch)
        with watch:
            train(comm, experiment, record)
        return record.waits[-1] - record.waits[-2]

    return run(program, experiment.ranks)[: experiment.workers]


TEXT = {
    "model": {"name": "transformer", "width": 16, "depth": 2},
    "data": {"name": "docstrings", "context": 8},
}
TENSOR, PIPELINE = {"kind": "tensor", "tensor": 2}, {"kind": "pipeline", "stages": 2, "microbatches": 3}
SPLITS = {
    "data": dict(workers=2),
    "micro-batches": dict(workers=2, split={"microbatches": 3}),
    "cnn": dict(workers=2, model="cnn", shards="by_label"),
    "batch normalisation": dict(workers=2, model={"name": "mlp", "norm": "sync_batch"}),
    "zero 1": dict(workers=2, split={"zero": 1}),
    "zero 3": dict(workers=2, split={"zero": 3}),
    "zero 3, overlapped": dict(workers=2, split={"zero": 3}, sync={"overlap": True}),
    "tensor, mlp": dict(workers=2, split=TENSOR),
    "tensor, overlapping": dict(workers=2, split=TENSOR | {"redundancy": 0.5}),
    "tensor, cnn": dict(workers=2, model={"name": "cnn", "width": 32}, split=TENSOR),
    "tensor, transformer": dict(workers=2, split=TENSOR, **TEXT),
    "spatial": dict(workers=2, model={"name": "cnn", "width": 32}, split={"kind": "spatial", "rows": 2}),
    "1f1b": dict(workers=2, split=PIPELINE),
    "gpipe": dict(workers=2, split=PIPELINE | {"schedule": "gpipe"}, **TEXT),
    "interleaved": dict(
        workers=2,
        split=PIPELINE | {"schedule": "interleaved", "microbatches": 4},
        model={"width": 16, "depth": 4},
    ),
    "zb-h1": dict(workers=2, split=PIPELINE | {"schedule": "zb-h1"}, **TEXT),
    "pipedream": dict(workers=2, split=PIPELINE | {"schedule": "pipedream", "microbatches": 1}),
    "recomputed": dict(workers=2, split=PIPELINE | {"recompute": True}),
    "hybrid": dict(workers=4, split={"kind": "hybrid", "stages": 2, "tensor": 2, "microbatches": 3}, **TEXT),
}
"""Splits of one replica."""


@pytest.mark.slow
@pytest.mark.parametrize("fields", SPLITS.values(), ids=SPLITS.keys())
def test_every_split_computes_on_its_device_and_waits_for_it_once_a_step(meta, fields):
    found = waits(**fields)
    assert max(sum(each.values()) for each in found) == 1, found  # to write down the loss


CUT = {
    "tensor": dict(workers=2, split="tensor"),
    "tensor, transformer": dict(workers=2, split="tensor", **TEXT),
    "overlapping": dict(workers=2, split={"kind": "tensor", "redundancy": 0.5}),
    "gpipe": dict(workers=2, split={"kind": "pipeline", "schedule": "gpipe", "microbatches": 3}),
    "tied weights": dict(workers=2, split={"kind": "pipeline", "microbatches": 3}, **TEXT),
    "hybrid": dict(workers=4, split={"kind": "hybrid", "microbatches": 3}, **TEXT),
    "measured": dict(workers=2, split={"kind": "pipeline", "microbatches": 3, "partition": "measured"}),
}
"""Splits by which a rank has a piece of the model."""


def tensors() -> list[torch.Tensor]:
    """All of floats that live now, on the host as well."""
    gc.collect()
    with warnings.catch_warnings(action="ignore"):  # some modules' objects warn when they are looked at
        found = [thing for thing in gc.get_objects() if isinstance(thing, torch.Tensor)]
    return [tensor for tensor in found if tensor.is_floating_point()]


@pytest.mark.slow
@pytest.mark.parametrize("fields", CUT.values(), ids=CUT.keys())
def test_a_rank_of_a_cut_model_holds_its_piece_and_no_more(meta, monkeypatch, fields):
    """Every rank builds the whole model to cut it; of that nothing remains, also after a test."""
    model = {**fields.get("model", {}), "width": 128}  # so that activations are few beside weights
    experiment = Experiment(**{**SHORT, "evaluate_every": 3, **fields, "model": model})
    in_a_step, recorded, others, moved = [], [], tensors(), Dataset.to

    def to(dataset, device):
        there = moved(dataset, device)
        others.extend(part for each in (dataset, there) for part in vars(each).values())
        return there

    class Weighing(Kept):
        def step(self, step: int, **facts) -> None:
            if step == 2:
                recorded.append(sum(facts["memory"][kind] for kind in ("weights", "gradients", "gathered")))
            if step == 5 and len(in_a_step) == 0:  # all ranks have their pieces by now
                storages = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors()}
                for each in others:
                    storages.pop(each.untyped_storage()._cdata if isinstance(each, torch.Tensor) else 0, 0)
                in_a_step.append(sum(storages.values()))

    def program(comm):
        with Watch():
            train(comm, experiment, Weighing(comm))

    monkeypatch.setattr(Dataset, "to", to)
    run(program, experiment.ranks)
    assert sum(recorded) <= in_a_step[0] < 1.25 * sum(recorded)


@pytest.mark.slow
def test_of_a_sharded_model_one_layer_after_the_other_comes_to_the_device(meta, monkeypatch):
    """A model may fit onto a GPU only in pieces."""
    there, make = [], zero.Sharded.__init__

    def made(sharded, parameters, task):
        there.append({p.device.type for p in task.model.parameters() if p.numel()} - {"cpu"})
        make(sharded, parameters, task)

    monkeypatch.setattr(zero.Sharded, "__init__", made)
    waits(workers=2, split={"zero": 3}, model={"depth": 3})
    assert len(there) == 2 * 4 and not any(there)


SCHEMES = {
    "library": (dict(sync={"allreduce": "library"}), 1),
    "overlapped": (dict(sync={"overlap": True, "bucket_mb": 0.001}), 1),
    "momentum": (dict(optimizer="momentum"), 1),
    "adagrad": (dict(optimizer="adagrad"), 1),
    "adam": (dict(optimizer="adam"), 1),
    "local SGD": (dict(averaging={"method": "local", "period": 2}), 2),
    "elastic": (dict(averaging={"method": "elastic", "period": 2}), 2),
    "1 bit": (dict(compression="onebit"), 1),
    "top k": (dict(compression="topk"), 1),
    "bf16 on the wire": (dict(compression="bf16"), 1),
    "factors": (dict(sync={"factors": True}), 1),
    "mapreduce": (dict(sync="mapreduce"), 3),
    "gossip": (dict(sync="gossip"), 2),
    "random peers": (dict(sync={"scheme": "gossip", "exchange": "random", "peers": 1}), 2),
    "push-sum": (dict(sync={"scheme": "gossip", "exchange": "push_sum"}), 3),
    "pairwise": (dict(sync={"scheme": "gossip", "exchange": "pairwise"}), 2),
    "ps": (dict(sync="ps"), 2),
    "ps, two servers": (
        dict(sync={"scheme": "ps", "servers": 2, "consistency": "asp", "pull": "separate"}),
        3,
    ),
    "ps, 1 bit": (dict(sync="ps", compression="onebit"), 2),
}
"""And the most waits of a worker in a step."""

FREE = ("pairwise", "ps, two servers")
"""Schemes whose losses depend on who comes first."""


@pytest.mark.slow
@pytest.mark.parametrize(("fields", "most"), SCHEMES.values(), ids=SCHEMES.keys())
def test_every_scheme_keeps_to_its_device(meta, fields, most):
    found = waits(workers=2, **fields)
    assert max(sum(each.values()) for each in found) == most, found


# ---- when a GPU has done what it was told ----------------------------------------------------


class Stream:
    """Does one thing after the other, and is told ahead."""

    def __init__(self) -> None:
        self.idle_at = 0.0

    def work(self, seconds: float) -> None:
        self.idle_at = max(self.idle_at, self.host.now()) + seconds

    def synchronize(self) -> None:
        self.host.time = max(self.host.time, self.idle_at)


class Event:
    """As torch.cuda's."""

    made = 0

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing
        Event.made += 1

    def record(self, stream: Stream) -> None:
        self.stream, self.at = stream, max(stream.idle_at, stream.host.now())

    def synchronize(self) -> None:
        self.stream.host.time = max(self.stream.host.time, self.at)

    def query(self) -> bool:
        return self.stream.host.time >= self.at

    def elapsed_time(self, later: Event) -> float:
        assert later.at >= self.at and later.stream.host.time >= later.at, "read before it was there"
        return 1000 * (later.at - self.at)


class Host:
    """A rank with a GPU, and a clock that stands still unless told."""

    rank, device, time = 0, torch.device("cuda", 0), 100.0

    def __init__(self) -> None:
        self.traffic, self.world = Traffic(self.now), World(self.device, "mpi")

    def now(self) -> float:
        return self.time


@pytest.fixture
def gpu(monkeypatch):
    """A rank whose GPU is told ahead."""
    host, stream = Host(), Stream()
    stream.host = host
    Event.made = 0
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    return host, stream


def lines(folder) -> list[dict]:
    return [json.loads(line) for line in (folder / "rank-0.jsonl").read_text().splitlines()]


def test_spans_on_a_gpu_are_of_what_it_did_and_the_host_waits_for_the_step_before(gpu, tmp_path):
    host, stream = gpu
    record = Recorder(tmp_path, host)
    begins = host.time
    for step in range(3):
        with record.span("forward"):
            stream.work(0.02)
        with record.span("backward"):
            stream.work(0.04)
        with record.span("update"):
            stream.work(0.005)
        record.step(step, loss=torch.tensor(float(step)))
        # The GPU is a step behind, and never idle.
        assert host.time == pytest.approx(begins + 0.065 * step) and stream.idle_at > host.time
    record.flush()
    assert host.time == stream.idle_at
    first, second, _ = lines(tmp_path)
    assert {name: pytest.approx(times) for name, *times in first["spans"]} == {
        "forward": [100, 100.02],
        "backward": [100.02, 100.06],
        "update": [100.06, 100.065],
    }
    assert second["spans"][0] == ["forward", pytest.approx(100.065), pytest.approx(100.085)]
    assert (second["loss"], second["t"]) == (1.0, pytest.approx(100.13))
    assert second["compute"] == pytest.approx(0.065) and second["comm"] == 0


def test_a_gpu_has_short_steps_ahead_while_the_host_is_held_up(gpu, tmp_path):
    host, stream = gpu
    record = Recorder(tmp_path, host)
    for step in range(300):
        with record.span("whole step"):
            stream.work(0.0001)
        record.step(step, loss=torch.tensor(float(step)))
        host.time += 0.00001
        if step % 100 == 99:
            began, ahead = host.time, stream.idle_at - host.time
            host.time += 0.0005  # it draws a new order of samples
            assert 0.0005 < ahead < AHEAD + 0.0002, (began, ahead)
    record.flush()
    found = lines(tmp_path)
    assert [line["loss"] for line in found] == list(range(300))
    assert found[-1]["t"] == pytest.approx(100.03)  # the GPU was never idle


def test_a_gpu_that_failed_leaves_the_error_as_the_last_line(gpu, tmp_path, monkeypatch):
    host, stream = gpu
    record = Recorder(tmp_path, host)
    for step in range(4):
        with record.span("whole step"):
            stream.work(0.0001)
        record.step(step, loss=0.0)

    def fail(event: Event) -> None:
        raise RuntimeError("an illegal memory access was encountered")

    monkeypatch.setattr(Event, "synchronize", fail)
    record.error(ValueError("it was"))
    record.flush()
    assert lines(tmp_path)[-1]["message"] == "it was"


def test_a_message_on_a_gpu_is_timed_between_what_it_did(gpu, tmp_path):
    host, stream = gpu
    record = Recorder(tmp_path, host)
    with record.span("forward"):
        stream.work(2.0)
    with record.span("communicate"):
        host.time = stream.idle_at + 1.0  # a message that the host waits for
    record.step(0, loss=0.0)
    record.event("afterwards")  # comes behind the step
    step, event = lines(tmp_path)
    assert (step["compute"], step["comm"], step["t"]) == (2.0, 1.0, 103.0) and event["name"] == "afterwards"


def test_the_clock_of_a_gpu_is_set_once_a_second_and_its_events_are_used_again(gpu, tmp_path, monkeypatch):
    host, stream = gpu
    set_at, compared = [], DeviceClock._compared
    monkeypatch.setattr(DeviceClock, "_compared", lambda clock: set_at.append(host.time) or compared(clock))
    record = Recorder(tmp_path, host)
    for step in range(100):
        with record.span("forward"):
            stream.work(0.1)
        record.step(step, loss=0.0)
    assert len(set_at) == 9 and min(b - a for a, b in pairwise(set_at)) > 1
    assert Event.made < 20 and stream.idle_at == pytest.approx(110)
    record.flush()
    assert [line["t"] for line in lines(tmp_path)] == pytest.approx([100.1 + 0.1 * n for n in range(100)])


def test_the_gpu_s_waits_for_messages_of_nccl_are_timed_though_the_host_waits_for_none(
    gpu, monkeypatch, tmp_path
):
    host, stream = gpu
    # A message that arrives 3 s after its receive; the host is told so at once.
    work = SimpleNamespace(wait=lambda: stream.work(3.0))
    monkeypatch.setattr(torch.distributed, "batch_isend_irecv", lambda operations: [work])
    monkeypatch.setattr(torch.distributed, "P2POp", lambda *of_message, **of_group: of_message)
    host.traffic, host.group, host._batch = DeviceTraffic(host.now, host.device), None, None
    host.together = partial(DistributedComm.together, host)
    record = Recorder(tmp_path, host)
    for step in range(2):
        with record.span("backward"):
            stream.work(2.0)
        with record.span("receive"):
            assert UnderWay(host, torch.distributed.irecv, torch.empty(2), 1).wait() == Arrival(1, 0, 8)
        record.step(step, loss=0.0)
    record.flush()
    for step in lines(tmp_path):
        assert (step["compute"], step["comm"], step["wait"]) == (2.0, 0.0, 3.0)


@pytest.mark.parametrize(
    "fields, waits",
    [
        ({}, 0.0),
        ({"split": {"kind": "tensor", "tensor": 2}}, 3.0),
        ({"sync": {"scheme": "ring", "overlap": True}}, 0.0),
    ],
    ids=["data", "tensor", "overlapped"],
)
def test_a_straggler_s_factor_multiplies_what_its_gpu_computes_and_no_message(
    gpu, fields, waits, monkeypatch
):
    host, stream = gpu
    paused, beside = [], Stream()  # buckets are under way on a stream of their own
    beside.host = host
    monkeypatch.setattr(
        torch.cuda, "synchronize", lambda device: (stream.synchronize(), beside.synchronize())
    )
    host.traffic = DeviceTraffic(host.now, host.device)
    host.world.pause = paused.append
    experiment = Experiment(workers=2, delays={"straggler": {0: 3.0}}, **fields)
    delays = Delays(experiment, host, base.Recorder())
    for step in range(3):
        began = delays.clock()
        host.traffic.queued(lambda: stream.work(waits))  # a layer waits for another rank
        stream.work(2.0)
        beside.work(4.0)
        delays.after(step, began, step)
        stream.work(10.0)  # the sum of gradients is still under way when the next step begins
    assert paused == [pytest.approx(2 * 2.0)] * 3
