"""Judge one answer inside a box: :func:`main` reads the trial as JSON from standard input.

It writes two lines of JSON to standard output: the surroundings of the judge, before any of the student's code runs,
and the verdict.  Both carry the trial's secret, which no other process knows.  The student's code runs only in the
processes of simulated jobs, which the judge starts and does not trust: it reads their results without running anything.
"""

from __future__ import annotations

import ctypes
import io
import json
import linecache
import os
import pickle
import socket
import sys
from collections.abc import Callable
from typing import Any

import torch

from dlpar.course.judge import Verdict
from dlpar.jobs import launch
from dlpar.jobs.launch import JobFailed, spmd

PR_SET_DUMPABLE = 4

LONGEST = 4_000
"""Characters of a verdict's sentence, which may quote the student."""

CALL_TIMEOUT = 15.0
"""Seconds for one call of a function that needs no ranks."""

READABLE = {
    ("builtins", "complex"), ("builtins", "set"), ("builtins", "frozenset"), ("builtins", "slice"),
    ("collections", "OrderedDict"), ("dlpar.split.schedules", "Action"),
    ("numpy", "dtype"), ("numpy", "ndarray"), ("numpy._core.multiarray", "scalar"),
    ("numpy._core.multiarray", "_reconstruct"), ("numpy._core.numeric", "_frombuffer"),
    ("torch._utils", "_rebuild_tensor_v2"),
}  # fmt: skip
"""Classes and functions that a rank's result may name."""


def main() -> None:
    """Report the surroundings and the verdict."""
    if sys.platform == "linux":
        # Others of this account, such as the student's, cannot look into this process.
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    channel, trial = os.dup(1), json.load(sys.stdin)  # the copy is not handed on to other processes
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)

    def tell(**facts: Any) -> None:
        os.write(channel, json.dumps({"secret": trial["secret"], **facts}).encode() + b"\n")

    launch.load = read_result
    space: dict[str, Any] = {"__name__": "__main__"}
    _run(trial["given"], "<given>", space)
    space |= {name: JudgedFunction(trial["given"], trial["answer"], name) for name in trial["names"]}
    writable = [folder for folder in ("/tmp", "/var/tmp", "/dev/shm") if os.access(folder, os.W_OK)]
    tell(account=os.getuid(), networks=[name for _, name in socket.if_nameindex()], writable=writable)
    solved, said = _judged(space, trial["check"])
    tell(solved=solved, said=said[:LONGEST])


def _judged(space: dict[str, Any], check: str) -> tuple[bool, str]:
    """Run a check; solved only if it ran to its end and its verdict says so."""
    space.pop("solved", None)
    failure = None
    try:
        _run(check, "<check>", space)
    except BaseException as error:
        failure = f"{type(error).__name__}: {error}"
    found = space.get("solved")
    if not isinstance(found, Verdict):
        return False, f"not yet: {failure or 'the check came to no verdict'}"
    return failure is None and found.status == "solved", repr(found)


def _run(source: str, file: str, space: dict[str, Any]) -> None:
    """Run source among the names of `space`; tracebacks quote its lines under the name `file`."""
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    exec(compile(source, file, "exec"), space)


class JudgedFunction:
    """A student's function in a check.

    Sent to a rank it becomes the function itself (:func:`on_rank`).  Called by the judge, it runs on one simulated
    rank and returns the result from there.

    Parameters
    ----------
    given : str
        Source that runs before hers: imports, and code that the lab gives.
    source : str
        The answer.
    name : str
        The function she was asked for.
    """

    def __init__(self, given: str, source: str, name: str) -> None:
        self.given, self.source, self.__name__ = given, source, name

    def __reduce__(self) -> tuple:
        return on_rank, (self.given, self.source, self.__name__)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        here = {"workers": 1, "world": "simulated", "timeout": CALL_TIMEOUT}
        try:
            return spmd(_called, self, arguments, named, **here)[0]
        except JobFailed as failure:
            if "NotImplementedError" in str(failure):
                raise NotImplementedError from None
            raise RuntimeError(str(failure)) from None


def on_rank(given: str, source: str, name: str) -> Callable[..., Any]:
    """Run a student's source in a process of ranks; returns her function, raises `NameError` if she wrote none."""
    space: dict[str, Any] = {"__name__": "__main__"}
    _run(given, "<given>", space)
    _run(source, "<answer>", space)
    if not callable(space.get(name)):
        raise NameError(f"there is no function {name} in the answer")
    return space[name]


def _called(comm: Any, answer: Callable[..., Any], arguments: tuple, named: dict[str, Any]) -> Any:
    return answer(*arguments, **named)


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("torch.storage", "_load_from_bytes"):
            return _storage
        if (module, name) not in READABLE:
            allowed = "numbers, text, lists, mappings and tensors"
            raise ValueError(f"a rank returned a {module}.{name}, allowed are {allowed}")
        return super().find_class(module, name)


def read_result(body: bytes) -> Any:
    """Read numbers, text, lists, tuples, sets, mappings, arrays and tensors; raises an error for anything else."""
    return _Reader(io.BytesIO(body)).load()


def _storage(content: bytes) -> Any:
    return torch.load(io.BytesIO(content), weights_only=True)
