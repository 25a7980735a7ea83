"""Why a job ended: the rank is named, and the line of code at which it stood."""

from __future__ import annotations

import ctypes
import os
import signal

import pytest

import dlpar
from dlpar.jobs import diagnosis

pytestmark = pytest.mark.slow


def test_output_is_marked_by_rank_whoever_marked_it():
    assert diagnosis.by_rank(b"[prterun-host-12@1,3]<stdout>: hello\n") == b"[rank 3] hello\n"
    assert diagnosis.by_rank(b"[prterun-host-12@1,0]<stderr>: \n") == b"[rank 0] \n"
    assert diagnosis.by_rank(b"[2] hello\n") == b"[rank 2] hello\n"
    assert diagnosis.by_rank(b"11: hello\n") == b"[rank 11] hello\n"
    assert diagnosis.by_rank(b"plain\n") == b"plain\n"


@pytest.mark.parametrize("world", ["real", "simulated"])
def test_a_rank_that_leaves_with_status_0_has_not_done_its_work(world):
    with pytest.raises(dlpar.JobFailed, match="^rank 1.* ended its process before its work was done"):
        dlpar.spmd(lambda comm: comm.rank == 1 and os._exit(0), workers=2, world=world)


@pytest.mark.parametrize(
    ("end", "told"),
    [
        (lambda: os._exit(3), "ended with status 3: it printed nothing"),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "was killed by SIGKILL"),
        (lambda: ctypes.string_at(0), "was killed by SIGSEGV"),
    ],
    ids=["exit", "kill", "crash"],
)
def test_a_rank_that_ends_the_process_of_all_ranks_of_a_simulation_is_named(end, told):
    with pytest.raises(dlpar.JobFailed, match=rf"^rank 2 \(in the process of all ranks\) {told}"):
        dlpar.spmd(lambda comm: comm.rank == 2 and end(), workers=4, world="simulated")


def test_where_messages_carry_sizes_only_the_process_of_all_ranks_is_named():
    with pytest.raises(dlpar.JobFailed, match="^the process of all ranks ended with status 3"):
        dlpar.spmd(lambda comm: os._exit(3), workers=2, world="simulated", messages="sizes")


def test_the_one_worker_behind_all_others_is_the_likely_culprit_of_those_that_are_silent(tmp_path):
    for rank, role, steps in ((0, "worker", 3), (1, "worker", 1), (2, "server", 0)):
        lines = [f'{{"k": "rank", "rank": {rank}, "role": "{role}"}}']
        lines += [f'{{"k": "step", "step": {step}}}' for step in range(steps)]
        (tmp_path / f"rank-{rank}.jsonl").write_text("\n".join(lines) + "\n")
    files = diagnosis.rank_files(tmp_path)
    assert diagnosis.likely_culprit(files, [0, 1, 2]) == diagnosis.likely_culprit(files, [1]) == 1
    assert diagnosis.likely_culprit(files, [0, 2]) is diagnosis.likely_culprit(files, [2]) is None
    with open(tmp_path / "rank-1.jsonl", "a") as file:
        file.write('{"k": "end"}\n')
    assert diagnosis.likely_culprit(files, [1, 2]) is None


def test_a_killed_server_is_told_to_be_one(tmp_path):
    (tmp_path / "log.txt").write_text(
        "mpiexec noticed that process rank 2 with PID 7 exited on signal 15 (Terminated)"
    )
    (tmp_path / "rank-2.jsonl").write_text('{"k": "rank", "rank": 2, "role": "server"}\n')
    assert diagnosis.outcome(tmp_path, 143) == ("failed", "rank 2 (server) was killed by SIGTERM", 2)


def test_of_a_rank_that_stands_in_a_line_of_dlpar_the_line_that_called_it_is_told(tmp_path):
    package = os.path.dirname(dlpar.__file__)
    stack = [
        (f"{package}/worlds/mpi.py", 70, "recv"),
        (f"{package}/collectives/ring.py", 60, "ring_allreduce"),
        ("<cell>", 3, "mine"),
        (f"{package}/jobs/rank.py", 141, "_call"),
    ]
    lines = [f'  File "{file}", line {line} in {function}\n' for file, line, function in stack]
    (tmp_path / "rank-0.stack").write_text("Current thread 0x01 (most recent call first):\n" + "".join(lines))
    (tmp_path / "rank-0.jsonl").write_text('{"k": "rank", "rank": 0, "host": "another"}\n')
    said = "rank 0 on another is in ring_allreduce (ring.py:60, called at <cell>:3), waiting in recv"
    assert diagnosis.where_ranks_are(tmp_path) == said


def stuck(comm) -> None:
    """Wait for a message that nobody sends."""
    import torch

    comm.recv(torch.empty(1), 0, 7)


def test_a_rank_that_waits_inside_autograd_s_thread_is_named_with_its_line():
    """As with a GPU, whose backward pass has a thread of its own: on the CPU one begins 60 passes deep."""

    def deep(comm):
        import torch

        class Nested(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, depth):
                ctx.depth = depth
                return 2 * x

            @staticmethod
            def backward(ctx, gradient):
                if ctx.depth == 0:
                    stuck(comm)
                backward_pass(ctx.depth - 1)
                return gradient, None

        def backward_pass(depth: int) -> None:
            with torch.enable_grad():
                Nested.apply(torch.ones(1, requires_grad=True), depth).sum().backward()

        if comm.rank == 1:
            backward_pass(62)
        comm.barrier()

    with pytest.raises(
        dlpar.JobFailed, match=r"rank 1 is in stuck \(test_diagnosis.py:\d+\), waiting in recv"
    ):
        dlpar.spmd(deep, workers=2, timeout=3)


def test_of_several_answers_the_last_counts(tmp_path):
    """A signal that the guardian did not send may have asked before."""
    autograd = '  File "/torch/autograd/function.py", line 9 in apply\n'
    earlier = f'Thread 0x02 (most recent call first):\n  File "<cell>", line 5 in before\n{autograd}\n'
    main = 'Current thread 0x01 (most recent call first):\n  File "<cell>", line 7 in now\n'
    (tmp_path / "rank-0.stack").write_text(earlier + main + "\n" + main)
    (tmp_path / "rank-0.jsonl").write_text('{"k": "rank", "rank": 0, "host": "another"}\n')
    assert diagnosis.where_ranks_are(tmp_path) == "rank 0 on another is in now (<cell>:7)"


def test_a_training_is_done_only_if_every_rank_says_so(tmp_path):
    for rank in range(2):
        (tmp_path / f"rank-{rank}.jsonl").write_text(
            '{"k": "step", "step": 0}\n' + '{"k": "end"}\n' * (rank == 0)
        )
    assert diagnosis.outcome(tmp_path, 0) == (
        "failed",
        "rank 1 ended its process before its work was done",
        1,
    )
    (tmp_path / "rank-1.jsonl").write_text('{"k": "end"}\n')
    assert diagnosis.outcome(tmp_path, 0)[0] == "done"


OPEN_MPI = """
PRTE has lost communication with a remote daemon.

  HNP daemon   : [prterun-a-273@0,0] on node a
  Remote daemon: [prterun-a-273@0,1] on node b
"""

SLURM = """
srun: Job step aborted: Waiting up to 4 seconds for job step to finish.
srun: error: a: task 0: Exited with exit code 14
srun: error: Timed out waiting for job step to complete
"""


@pytest.mark.parametrize(("log", "status"), [(OPEN_MPI, 0), (SLURM, 1)], ids=["Open MPI", "Slurm"])
def test_a_host_that_vanished_is_named(log, status, tmp_path):
    """Open MPI's launcher ends with status 0 after such a report."""
    (tmp_path / "log.txt").write_text(log)
    for rank, host in enumerate("aabb"):
        (tmp_path / f"rank-{rank}.jsonl").write_text(f'{{"k": "rank", "rank": {rank}, "host": "{host}"}}\n')
    assert diagnosis.outcome(tmp_path, status) == ("failed", "host b is down or cannot be reached", 2)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("srun: error: b: task 1: Killed", "rank 1 on b ended by a signal: Killed"),
        (
            "[rank 1] no memory\nsrun: error: b: tasks 1-3: Exited with exit code 3",
            "rank 1 on b ended with status 3: [rank 1] no memory",
        ),
    ],
)
def test_a_rank_that_ended_under_slurm_is_named_with_its_host(said, told, tmp_path):
    (tmp_path / "log.txt").write_text(f"srun: error: first\n{said}\n")
    (tmp_path / "rank-1.jsonl").write_text('{"k": "rank", "rank": 1, "host": "b"}\n')
    assert diagnosis.outcome(tmp_path, 137) == ("failed", told, 1)
