"""Snapshots: the state of every rank, written during training and used to resume a run.

A rank's state is a set of named tensors and numbers with a version.  An object lists the attributes that
belong to its state: ``kept = ("weights", "optimizer")``.  Nested objects do the same. Each rank writes its
own shard in the safetensors format, which holds no code.  It writes under a temporary name, syncs to the
disk, and then renames the file.  The rank whose shard is the last of a set writes the set's manifest. A set
without a manifest is not a snapshot.
"""

from __future__ import annotations

import json
import os
import shutil
import zlib
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from dlpar import comm
from dlpar.config.experiment import Experiment
from dlpar.config.paths import write_whole
from dlpar.config.schema import BadExperiment
from dlpar.delays import Death, Delays
from dlpar.jobs.run import MANIFEST, SETS, SNAPSHOTS, snapshots_in
from dlpar.jobs.tail import ORDERS, REFUSAL, attempts_in, lines_of, source_of
from dlpar.split.mesh import holders
from dlpar.split.zero import cut_again
from dlpar.sync.membership import resized

ATTEMPT = "attempt.json"
"""Name of the file with the current attempt of a resumed run."""

Tree = Any
"""State as JSON: numbers, text and None unchanged; ``{"tensor": name}``, ``{"list": […]}``,
``{"dict": [[key, …]]}`` and ``{"object": {attribute: …}}``."""


# ---- from objects to named tensors, and back -------------------------------------------


def taken(thing: Any, name: str, tensors: dict[str, Tensor]) -> Tree:
    """Return an object's state as a tree. Copy its tensors into `tensors`, on the host."""
    if thing is None or isinstance(thing, (bool, int, float, str)):
        return thing
    if isinstance(thing, torch.Tensor):
        tensors[name] = thing.detach().to("cpu", copy=True).contiguous()
        return {"tensor": name}
    if isinstance(thing, Mapping):
        pairs = enumerate(thing.items())
        return {"dict": [[key, taken(value, f"{name}.{n}", tensors)] for n, (key, value) in pairs]}
    if isinstance(thing, (list, tuple)):
        return {"list": [taken(each, f"{name}.{n}", tensors) for n, each in enumerate(thing)]}
    attributes = getattr(thing, "kept", ())
    return {"object": {a: taken(getattr(thing, a), f"{name}.{a}", tensors) for a in attributes}}


def put(tree: Tree, thing: Any, tensors: Mapping[str, Tensor], device: torch.device) -> Any:
    """Restore an object from a tree and return it.

    Objects, and tensors of equal shape, are restored in place.  An object's new vectors are put where its
    ``weights`` are, or else on `device`, and new counts on the host.
    """
    if not isinstance(tree, dict):
        return tree
    (kind, held), *_ = tree.items()
    if kind == "tensor":
        found = tensors[held]
        if not isinstance(thing, torch.Tensor) or thing.shape != found.shape:
            return found.to(device if found.dim() else "cpu", copy=True)
        thing.detach().copy_(found)
    elif kind == "object":
        device = getattr(getattr(thing, "weights", None), "device", device)  # a server's are on the host
        for attribute, value in held.items():
            before = getattr(thing, attribute)
            after = put(value, before, tensors, device)
            if after is not before:
                setattr(thing, attribute, after)
    elif kind == "list":
        before = list(thing) if isinstance(thing, (list, tuple)) else []
        after = [put(value, each, tensors, device) for value, each in zip_longest(held, before[: len(held)])]
        return thing if thing is not None and _same(after, before) else after
    else:
        before = thing if isinstance(thing, Mapping) else {}
        keyed = [(tuple(key) if isinstance(key, list) else key, value) for key, value in held]
        after = {key: put(value, before.get(key), tensors, device) for key, value in keyed}
        same = list(after) == list(before) and _same([*after.values()], [*before.values()])
        return thing if same else after
    return thing


def _same(after: list[Any], before: list[Any]) -> bool:
    """Return whether two lists hold identical objects."""
    return len(after) == len(before) and all(a is b for a, b in zip(after, before))


class State:
    """State of one rank at one moment, held on the host.

    Parameters
    ----------
    tree : dict
        The tree of each of the rank's parts.
    tensors : dict of str to Tensor
        Its tensors.
    own, done : int
        Steps that this rank has done or, as a backup worker, skipped, and global steps.
    """

    def __init__(self, tree: dict[str, Tree], tensors: dict[str, Tensor], own: int, done: int) -> None:
        self.tree, self.tensors, self.own, self.done = tree, tensors, own, done

    @classmethod
    def of(cls, parts: Mapping[str, Any], own: int, done: int) -> State:
        """Copy the state of some named objects."""
        tensors: dict[str, Tensor] = {}
        return cls({name: taken(thing, name, tensors) for name, thing in parts.items()}, tensors, own, done)

    def common(self) -> State:
        """Return the common state of equal replicas: weights and the scheme's state."""
        tree = {name: self.tree[name] for name in ("part", "sync")}
        tensors = {name: t for name, t in self.tensors.items() if name.split(".")[0] in tree}
        return State(tree, tensors, self.own, self.done)

    def write(self, path: Path) -> None:
        """Write a shard atomically."""
        meta = {"tree": json.dumps(self.tree), "own": str(self.own), "done": str(self.done)}
        write_whole(path, save(self.tensors, meta | {"crc": str(self._crc())}), synced=True)

    @classmethod
    def read(cls, path: Path) -> State:
        """Read a shard. Raises `ValueError` if it is torn or changed."""
        try:
            with safe_open(path, "pt") as file:
                meta = file.metadata()
                tensors = {name: file.get_tensor(name) for name in file.keys()}
            state = cls(json.loads(meta["tree"]), tensors, int(meta["own"]), int(meta["done"]))
            if state._crc() == int(meta["crc"]):
                return state
        except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path.name} is incomplete ({error})") from None
        raise ValueError(f"{path.name} was changed after it was written")

    def _crc(self) -> int:
        """Return a checksum of all numbers in the order of their names."""
        crc = 0
        for name in sorted(self.tensors):
            crc = zlib.crc32(self.tensors[name].reshape(-1).view(torch.uint8).numpy(), crc)
        return crc


# ---- sets of shards in a run folder ------------------------------------------------------


def shard(folder: Path, step: int, rank: int) -> Path:
    """Return the file of a rank's shard of the snapshot after `step` global steps."""
    return folder / SNAPSHOTS / f"step-{step:08d}" / f"rank-{rank}.safetensors"


def newest(folder: Path, experiment: Experiment) -> Attempt:
    """Return the next attempt of a run.

    It starts from the newest complete snapshot that fits the experiment.

    Raises
    ------
    BadExperiment
        If there is no such snapshot. The message says why the newest is refused.
    """
    why = f"it has none that is complete; its snapshot.every is {experiment.snapshot.every}, and 0 means none"
    for step in snapshots_in(folder):
        try:
            held = check(folder, step, experiment)
            # An attempt without records never began.
            return Attempt(sum(map(bool, attempts_in(folder))), step, 0.0, held, experiment.workers)
        except ValueError as error:
            why = f"the snapshot after step {step} is refused: {error}"
    raise BadExperiment(f"run: got {folder.name}, allowed is a run with a snapshot ({why})")


def check(folder: Path, step: int, e: Experiment) -> int:
    """Return a snapshot's number of workers. Raise `ValueError` if it is torn or belongs to another run."""
    try:
        manifest = json.loads((shard(folder, step, 0).parent / MANIFEST).read_bytes())
        of, workers, shards = manifest["of"], int(manifest["workers"]), list(map(int, manifest["shards"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"its manifest cannot be read ({error})") from None
    if of != identity(e):
        raise ValueError(f"it belongs to {of}, but the run is {identity(e)}")
    whole = e.split.kind != "data" or e.compression.codec != "none" or e.averaging.method != "none"
    if workers != e.workers and whole:
        why = "the number of ranks may change only if each holds a whole replica, without codec and averaging"
        raise ValueError(f"it has {workers} workers, but the run has {e.workers}: {why}")
    for rank in shards:
        State.read(shard(folder, step, rank))
    return workers


def identity(e: Experiment) -> str:
    """Describe in words the runs that a snapshot fits. The number of workers may differ."""
    servers = e.members - e.workers
    return f"{e.model} on {e.data} by {e.sync}, split {e.split}, {servers} servers, seed {e.seed}"


class Attempt(NamedTuple):
    """Attempt: one of the jobs that together make a run.

    Attributes
    ----------
    number : int
        0 for the first attempt, 1 after a run has been resumed once.
    step : int
        Global steps done before this attempt.
    began : float
        Seconds of the run that passed before its ranks were ready.
    held, workers : int
        Number of workers with state in the snapshot, and number of workers that continue from it.
    """

    number: int = 0
    step: int = 0
    began: float = 0.0
    held: int = 0
    workers: int = 0

    @classmethod
    def of(cls, folder: Path) -> Attempt:
        """Read the attempt of the job in a folder."""
        file = folder / ATTEMPT
        return cls(*json.loads(file.read_bytes())) if file.exists() else cls()

    def fit(self, experiment: Experiment) -> Experiment:
        """Return a run's experiment with the workers of this attempt."""
        return experiment if self.workers in (0, experiment.workers) else resized(experiment, self.workers)

    def state(self, folder: Path, experiment: Experiment, rank: int) -> State | None:
        """Return the initial state of a rank, or None for a spare and in a first attempt.

        With another number of workers, flat ranges of ZeRO are cut again, and servers keep their state.
        Other workers take the common state of one replica. In gossip, each takes the whole state of one
        replica.
        """
        if not self.number or rank >= experiment.members:
            return None
        read = lambda rank: State.read(shard(folder, self.step, rank))
        if self.held == self.workers:
            state = read(holders(experiment)[rank])
        elif rank >= self.workers:
            state = read(rank - self.workers + self.held)
        elif getattr(experiment.split, "zero", 0):
            state = recut([read(old) for old in range(self.held)], self.workers, rank)
        else:
            state = read(0 if experiment.sync.sends_gradients else rank % self.held)
            if experiment.sync.server_ranks:
                del state.tree["sync"]  # unpushed gradients belong to one worker
        state.done = self.step  # workers that run free may have done more
        return state


def recut(states: list[State], parts: int, place: int) -> State:
    """Return the state of one of `parts` ranks that divide flat tensors.

    It is computed from all previous states.

    Rank r of N holds range r. In ZeRO, these are ranges of each group of parameters, and the state of stage 3
    lists the lengths of the groups. On servers, these are ranges of each bucket.
    """
    first, tensors = states[0], {}
    lengths = first.tree.get("part", {"object": {}})["object"].get("lengths", {}).get("list")
    cut = ("part.replica.weights", "sync.optimizer.") if lengths else ("sync.optimizers.", "bucket ")
    for name, tensor in first.tensors.items():
        held = [state.tensors[name] for state in states]
        flat = name.startswith(cut) and tensor.dim()
        tensors[name] = cut_again(held, lengths or [sum(map(len, held))], parts, place) if flat else tensor
    return State(first.tree, tensors, first.own, first.done)


def begin(folder: Path, attempt: Attempt) -> None:
    """Rename the records of earlier attempts, store the next attempt's start, and remove files that it does not use."""
    attempts = attempts_in(folder)
    ends = [r["t"] for n in attempts[-1] if n.startswith("rank") for r in lines_of(folder / n) if "t" in r]
    began = max(ends, default=Attempt.of(folder).began)
    write_whole(folder / ATTEMPT, json.dumps(attempt._replace(began=began)).encode(), synced=True)
    for name in attempts[-1]:
        (folder / name).rename(folder / f"{source_of(name)}.{attempt.number - 1}.jsonl")
    if (log := folder / "log.txt").exists():  # its words would explain the end of the next attempt
        log.rename(folder / f"log.{attempt.number - 1}.txt")
    for name in ("summary.json", REFUSAL, ORDERS):
        (folder / name).unlink(missing_ok=True)
    remove_sets(folder, lambda step, is_complete: step > attempt.step or not is_complete)


def remove_sets(folder: Path, is_unwanted: Callable[[int, bool], bool]) -> None:
    """Remove sets of shards by step and by whether they are complete.

    Shards of an abandoned set would complete a later set of the same step with an older state.
    """
    for found in (folder / SNAPSHOTS).glob(SETS):
        if is_unwanted(int(found.name.removeprefix("step-")), (found / MANIFEST).exists()):
            (found / MANIFEST).unlink(missing_ok=True)  # first: from now on it is no snapshot
            shutil.rmtree(found, ignore_errors=True)


# ---- what a rank does ------------------------------------------------------------------


_writer = ThreadPoolExecutor(1, "dlpar-snapshot")
"""Writer of shards during training, one at a time for all ranks of this process."""


def written() -> None:
    """Wait until all pending shards are written."""
    _writer.submit(lambda: None).result()


class Orders(Death):
    """Requested death of a rank, and orders to the rank while it runs.

    Parameters
    ----------
    folder : Path
        The run folder, in which :class:`~dlpar.jobs.launch.Job` writes orders.
    *death
        As for :class:`~dlpar.delays.Death`.
    """

    def __init__(self, folder: Path, *death: Any) -> None:
        super().__init__(*death)
        self._path, self._size, self._heard, self._factor = str(folder / ORDERS), 0, 0, None

    def hear(self, record: comm.Recorder, delays: Delays | None) -> None:
        """Follow new orders to this rank: to die after this step, or to change its delays."""
        # Each step checks this, so the usual case, no file, may cost only a microsecond.
        if os.access(self._path, os.F_OK) and (size := os.stat(self._path).st_size) != self._size:
            new = [*lines_of(Path(self._path))][self._heard :]
            self._size, self._heard = size, self._heard + len(new)
            for order in (order for order in new if order["rank"] == self.rank):
                self.step = 0 if "die" in order else self.step
                self._factor = order.get("factor", self._factor)
                if delays and "stall" in order:
                    delays.change(stall=order["stall"])
                record.event("ordered", **{k: v for k, v in order.items() if k not in ("k", "rank")})
        if delays and self._factor not in (None, delays.factor):  # also for new delays after another death
            delays.change(self._factor)


class Keeper(comm.Keeper):
    """Keeper of one rank's state. It restores the state in a resumed run, and writes it every few steps.

    Parameters
    ----------
    folder : Path
        The run folder.
    experiment : Experiment
        Defines the interval, and the number of snapshots kept.
    record : Recorder
        Records each snapshot: a span for the copy that a step waits for, an event for the rest.
    rank : int
        Number of the rank in the job.
    orders : Orders
        Death of this rank on request, and orders to it.
    state : State, optional
        State to resume from; default: the beginning.
    """

    def __init__(
        self,
        folder: Path,
        experiment: Experiment,
        record: comm.Recorder,
        rank: int,
        orders: Orders,
        state: State | None = None,
    ) -> None:
        self.folder, self.experiment, self.record, self.rank = folder, experiment, record, rank
        self.state, self.resumed, self.orders = state, state is not None, orders
        self.every = experiment.snapshot.every
        self.shards = sorted(set(holders(experiment))) if self.every else []
        self.own, self.done = (state.own, state.done) if state else (0, 0)
        self.parts: dict[str, Any] = {}
        self._last = self.done  # number of global steps when the last snapshot was due
        self._copied = self._writing = None  # the last copy and its step, before and while it is written

    def hold(self, **parts: Any) -> None:
        """Add objects to this rank's state. In a resumed run, restore their state."""
        self.parts |= parts
        for name in parts.keys() & (self.state.tree if self.state else ()):
            put(self.state.tree[name], parts[name], self.state.tensors, self.record.comm.device)

    def after(self, own: int, done: int, at_end: bool = False) -> None:
        """Die or take a snapshot if this is due after `done` global steps. This rank did or skipped `own`.

        The last step's snapshot is taken `at_end`, when all ranks have the final weights.
        """
        self._submit()
        self.own, self.done = own, done
        self.orders.hear(self.record, self.parts.get("delays"))
        self.orders.after(done, self.record)
        # Several, for a slow worker that runs free.
        due = range((self._last // self.every + 1) * self.every, done + 1, self.every) if self.every else ()
        if not due or (done >= self.experiment.steps and not at_end):
            return
        self._last = done
        self.record.flush()
        if at_end and len(self.shards) < self.experiment.members:
            self.record.comm.barrier()
        if self.rank in self.shards:
            self.close()  # at most one copy waits in memory
            with self.record.span("snapshot"):
                self._copied = State.of(self.parts, own, done), due

    @property
    def is_whole(self) -> bool:
        """Return whether this rank's state is complete, so that any rank can continue from it.

        A server that restarts counts its steps only when it has its range and its copy.
        """
        servers = [part.done for name, part in self.parts.items() if name.startswith("bucket")]
        return "sync" in self.parts or (bool(servers) and min(servers) >= min(1, self.done))

    def standing(self) -> tuple[int, int]:
        """Return the rank's own steps and the global steps in its weights, including an unrecorded step."""
        if sync := self.parts.get("sync"):
            return self.own + sync.begun, self.done + sync.begun
        done = min(server.done for server in self.parts.values())
        return done, done

    def close(self) -> None:
        """Wait for the pending snapshot and record it. A failed snapshot does not stop training."""
        self._submit()
        if self._writing is not None:
            done, self._writing = self._writing, None
            try:
                self.record.event("snapshot", **done.result())
            except OSError as error:
                self.record.event("no snapshot", reason=str(error))

    def _submit(self) -> None:
        """Begin to write the last copy, one step later. By then all ranks have recorded the steps in it."""
        if self._copied:
            self._writing, self._copied = _writer.submit(self._write, *self._copied), None

    def _write(self, state: State, due: range) -> dict[str, Any]:
        own = shard(self.folder, due[-1], self.rank)
        for step in reversed(due):
            path = shard(self.folder, step, self.rank)
            # A run folder that a user has removed does not come back.
            path.parent.mkdir(0o700, parents=self.folder.exists(), exist_ok=True)
            state.write(own) if path == own else os.link(own, path)
            if all(shard(self.folder, step, rank).exists() for rank in self.shards):
                self._commit(path.parent, step)
                break
        return {"step": due[-1], "bytes": sum(tensor.nbytes for tensor in state.tensors.values())}

    def _commit(self, folder: Path, step: int) -> None:
        """Complete a snapshot with its manifest, and drop older snapshots. Two ranks may do this at once."""
        e = self.experiment
        manifest = {"step": step, "workers": e.workers, "shards": self.shards, "of": identity(e)}
        write_whole(folder / MANIFEST, json.dumps(manifest, indent=1).encode(), synced=True)
        kept = snapshots_in(self.folder)[: self.experiment.snapshot.keep]
        remove_sets(self.folder, lambda step, _: step < min(kept))
