"""A student's function, which runs on ranks only: never in the process that judges it."""

from __future__ import annotations

import linecache
from typing import Any

from dlpar.jobs.launch import JobFailed, spmd

CALL_TIMEOUT = 15.0
"""Seconds for one call of a function that needs no ranks."""


class Answer:
    """Stands for a function of a student where she is judged.

    Sent to a rank it becomes the function itself.  Called here, as a function that sends no messages is, it
    has itself called on one simulated rank, and gives what was returned there.

    Parameters
    ----------
    given : str
        Source that runs before hers: imports, and what the lab gives.
    source : str
        What she wrote.
    name : str
        The function she was asked for.
    """

    def __init__(self, given: str, source: str, name: str) -> None:
        self.given, self.source, self.__name__ = given, source, name

    def __reduce__(self) -> tuple:
        return OnRank, (self.given, self.source, self.__name__)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        try:
            return spmd(called, self, arguments, named, workers=1, world="simulated", timeout=CALL_TIMEOUT)[0]
        except JobFailed as failure:
            if "NotImplementedError" in str(failure):
                raise NotImplementedError from None
            raise RuntimeError(str(failure)) from None


def called(comm: Any, answer: OnRank, arguments: tuple, named: dict[str, Any]) -> Any:
    """On a rank: what her function returns."""
    return answer(*arguments, **named)


class OnRank:
    """The student's function; what she wrote is run before its first call."""

    def __init__(self, given: str, source: str, name: str) -> None:
        self.given, self.source, self.__name__ = given, source, name
        self.function: Any = None

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        if self.function is None:
            self.function = self._function()
        return self.function(*arguments, **named)

    def _function(self) -> Any:
        space: dict[str, Any] = {"__name__": "__main__"}
        for file, source in (("<given>", self.given), ("<answer>", self.source)):
            run(source, file, space)
        if not callable(space.get(self.__name__)):
            raise NameError(f"there is no function {self.__name__} in the answer")
        return space[self.__name__]


def run(source: str, file: str, space: dict[str, Any]) -> None:
    """Run source among the names of `space`; tracebacks quote its lines as those of `file`, which is none."""
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    exec(compile(source, file, "exec"), space)
