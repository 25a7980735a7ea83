"""What `dlpar run` shows in a terminal while ranks train."""

from __future__ import annotations

import os
import pty
import select
import sys
import time
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from dlpar import Experiment
from dlpar.cli.terminal import Progress, View


def in_a_terminal(words: list[str], until: str, then: bytes) -> tuple[int, str]:
    """Run the program in a terminal, type `then` once `until` is on its screen; its status and output."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ |= {"TERM": "xterm-256color", "COLUMNS": "100"}
        os.execv(sys.executable, [sys.executable, "-m", "dlpar.cli", *words])
    screen, typed, deadline = "", False, time.monotonic() + 40
    while time.monotonic() < deadline:
        if select.select([terminal], [], [], 0.1)[0]:
            try:
                screen += os.read(terminal, 1 << 16).decode(errors="replace")
            except OSError:  # the program has ended
                break
        if not typed and until in screen:
            os.write(terminal, then)
            typed = True
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.close(terminal)
    return status, screen


@pytest.mark.slow
def test_in_a_terminal_the_run_is_shown_live_and_ctrl_c_stops_it():
    words = ["run", "--workers", "2", "--steps", "1000000", "--evaluate-every", "10"]
    status, screen = in_a_terminal(words, until="accuracy", then=b"\x03")
    assert status == 130 and "stopped by Ctrl-C" in screen
    for part in ("mlp on digits, 2 workers", "of 1,000,000", "left", "samples/s", "wait", "cpu by mpi"):
        assert part in screen
    assert screen.rindex("\x1b[?25h") > screen.rindex("\x1b[?25l")  # the cursor is shown again


def step(rank: int, number: int, loss: float, compute: float = 0.006) -> tuple[str, dict]:
    record = {"k": "step", "step": number, "t": 0.01 * (number + 1), "loss": loss, "samples": 32, "bytes": 0}
    times = {"compute": compute, "comm": 0.001, "wait": 0.009 - compute}
    return f"rank-{rank}", {**record, **times, "lead": 0, "staleness": 0}


def header(rank: int, device: str = "cpu", carrier: str = "mpi") -> tuple[str, dict]:
    record = {
        "k": "rank",
        "rank": rank,
        "host": "here",
        "device": device,
        "carrier": carrier,
        "clock": "wall",
    }
    return f"rank-{rank}", record


def test_servers_are_waited_for_too(tmp_path):
    folder = Folder(tmp_path)
    folder.experiment = Experiment(
        workers=2, steps=100, sync={"scheme": "ps", "servers": 2, "consistency": "asp"}
    )
    view, text = View(folder, terminal()), StringIO()
    view.progress.take([header(rank) for rank in range(3)])
    Console(file=text, width=100).print(view.picture())
    assert "2 workers, ps asp" in text.getvalue() and "3 of 4 ranks are ready" in text.getvalue()


def test_a_step_without_samples_has_no_loss():
    seen = Progress(Experiment(workers=2, steps=10, sync="mapreduce"))
    records = [step(rank, 0, loss) for rank, loss in enumerate([0.5, float("nan")])]
    records[1][1]["samples"] = 0
    seen.take(records)
    assert seen.figures() == "loss 0.5, 3,200 samples/s"


def progress(steps: int = 50) -> Progress:
    seen = Progress(Experiment(workers=2, steps=100, batch=64))
    records = [
        ("job", {"k": "launch", "mode": "warm"}),
        *(header(rank, "cuda:1", "nccl") for rank in range(2)),
    ]
    for rank in range(2):
        records += [step(rank, n, loss=1.0 + rank, compute=0.006 - 0.004 * rank) for n in range(steps)]
    if steps:
        records.append(("rank-0", {"k": "eval", "accuracy": 0.5, "t": 0.01 * steps}))
    seen.take(records)
    return seen


def test_progress_is_right():
    seen = progress()
    assert (
        seen.step_of() == "step 50 of 100"
        and seen.figures() == "loss 1.5, held-out accuracy 50.0%, 6,400 samples/s"
    )
    assert seen.time_left == "0.5 s left"
    assert seen.shares()[0] == pytest.approx([0.6, 0.1, 0.3])
    assert seen.shares()[1] == pytest.approx([0.2, 0.1, 0.7])
    assert seen.headline() == "mlp on digits, 2 workers, ring, real world on here, cuda by nccl"
    assert progress(100).time_left == ""
    seen.take([("rank-0", {"k": "event", "t": 0.0, "name": "chosen", "allreduce": ["ring", "tree", "ring"]})])
    assert seen.figures().endswith("6,400 samples/s, all-reduce: ring for 2 buckets, tree for 1 bucket")


def test_the_loss_is_drawn_as_far_as_the_run_is():
    seen, half = Progress(Experiment(workers=2, steps=80, batch=64)), []
    for number in range(80):
        seen.take([step(rank, number, loss=8.0 - number / 10) for rank in range(2)], ended=number == 79)
        if number == 39:
            half = seen.curve("abcdefgh")
    assert len(half) == 20 and (half[0], half[-1]) == ("h", "a") and list(half) == sorted(half, reverse=True)
    assert len(seen.curve("abcdefgh")) == 40


def test_a_loss_that_is_no_number_leaves_the_curve_as_it_was():
    seen = Progress(Experiment(workers=1, steps=40, batch=64))
    for number, loss in enumerate([2.0, 1.0, float("inf"), float("nan")]):
        seen.take([step(0, number, loss)])
    assert seen.curve("ab") == "ba"


def test_staleness_is_told_where_there_is_some():
    seen = Progress(Experiment(workers=2, steps=10, sync={"scheme": "ps", "consistency": "asp"}))
    for number, age in enumerate([0, 1, 2]):
        for rank in range(2):
            source, record = step(rank, number, loss=1.0)
            seen.take([(source, {**record, "staleness": age})])
    assert seen.figures().endswith("staleness 1 on average, 2 at most")
    assert "staleness" not in progress().figures()


def terminal() -> Console:
    return Console(file=StringIO(), width=100, force_terminal=True, color_system=None)


class Folder:
    """As much of a run as a view needs."""

    def __init__(self, path: Path) -> None:
        self.folder, self.experiment = path, Experiment(workers=2, steps=100, batch=64)


@pytest.mark.parametrize("steps", [0, 50, 100])
def test_the_picture_shows_how_it_stands(steps, tmp_path):
    console = terminal()
    view = View(Folder(tmp_path), console)
    view.progress = progress(steps)
    console.print(view.picture())
    shown = console.file.getvalue()
    if steps == 0:
        assert "starting (warm): 2 of 2 ranks are ready" in shown
        return
    assert f"step {steps} of 100" in shown and "loss 1.5, held-out accuracy 50.0%, 6,400 samples/s" in shown
    bars = [line for line in shown.splitlines() if line.split() and line.split()[0] in "01"]
    full, part, empty = view._bars
    assert [bars[0].count(full), bars[0].count(part), bars[0].count(empty)] == [18, 3, 9]
    assert bars[1].split()[-3:] == ["20%", "10%", "70%"]
