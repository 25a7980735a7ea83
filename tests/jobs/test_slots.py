"""Job slots: a limit on ranks that all share, in fair turns, and that no death can keep."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path

import pytest
from conftest import eventually

import dlpar
from dlpar import Experiment
from dlpar.cli import classroom
from dlpar.jobs import slots
from dlpar.jobs.launch import JobFailed
from dlpar.jobs.processes import descendants, kill, wait_gone
from dlpar.jobs.slots import MOST, Keeper, NoSlots, Talk, ask, is_kept
from dlpar.jobs.unix_sockets import listen

LONG = Experiment(workers=2, steps=1_000_000, evaluate_every=10_000_000)


@pytest.fixture
def keep(tmp_path, monkeypatch):
    """``keep(slots)`` starts a keeper for all jobs of this test, and returns it."""
    ends = []

    def start(slots: int, **fields) -> Keeper:
        keeper, over = Keeper(tmp_path / "slots", slots, **fields), threading.Event()
        thread = threading.Thread(target=keeper.serve, args=(over.is_set,))
        thread.start()
        ends.append((keeper, over, thread))
        monkeypatch.setenv("DLPAR_SLOTS", str(keeper.path))
        return keeper

    monkeypatch.setattr(slots, "LOOK", 0.02)
    yield start
    for keeper, over, thread in ends:
        over.set()
        with Talk(keeper.path, {}):  # wakes it
            thread.join(5)
        keeper.close()


def asked(keeper: Keeper, slots: int, name: str = "") -> Talk:
    """Somebody who waits, and has been told so."""
    talk = Talk(keeper.path, {"slots": slots, "as": name})
    talk.told = talk.hear()
    return talk


def begins(talk: Talk, within: float = 10.0) -> bool:
    """Whether this one's turn comes within some seconds; news of its place in the queue may come first."""
    end = time.monotonic() + within
    while not talk.files and (left := end - time.monotonic()) > 0:
        talk.settimeout(left)
        with suppress(NoSlots):
            talk.hear()
    return bool(talk.files)


def stays(talk: Talk) -> bool:
    """Whether this one is still in the queue after a moment."""
    return not begins(talk, within=0.3)


def state(keeper: Keeper) -> dict:
    with Talk(keeper.path, {}) as talk:
        return talk.hear()[0]


@pytest.mark.slow
def test_a_job_waits_for_slots_says_how_many_are_ahead_and_starts_by_itself(keep):
    keeper = keep(2)
    first = dlpar.launch(LONG)
    eventually(lambda: first.run.status == "running", 20, "the first job runs")
    second, third = (dlpar.launch(Experiment(workers=2, steps=5)) for _ in range(2))
    eventually(lambda: second.run.status == third.run.status == "queued", 5, "the others wait")
    counts = {"slots": 2, "taken": 2, "waiting": 2, "paused": False}
    assert state(keeper).items() >= counts.items()
    first.stop()
    assert len(second.wait(30).curve) == len(third.wait(30).curve) == 5
    said = [
        [json.loads(line) for line in (job.folder / "job.jsonl").read_text().splitlines()]
        for job in (second, third)
    ]
    ahead = [[record["ahead"] for record in of_job if record["k"] == "queued"] for of_job in said]
    assert max(map(max, ahead)) == 1 and all(places[-1] == 0 for places in ahead)
    launch_s = next(r["launch_s"] for _, r in third.run.records() if r.get("launch_s") is not None)
    waited = said[1][-1]["at"] - third.launched
    assert launch_s < waited, "waiting in the queue is no part of starting"
    eventually(lambda: state(keeper)["taken"] == 0, 5, "all slots are free again")


def test_stop_leaves_the_queue_and_a_simulation_does_not_enter_it(keep):
    keeper = keep(2)
    holder = asked(keeper, 2)
    assert begins(holder)
    waits = dlpar.launch(LONG)
    eventually(lambda: waits.run.status == "queued", 5, "it waits")
    simulated = dlpar.launch(Experiment(workers=4, steps=3, cluster={"world": "simulated"})).wait(30)
    assert simulated.status == "done"
    waits.stop()
    assert waits.run.status == "stopped" and state(keeper)["waiting"] == 0
    holder.close()


@pytest.mark.slow
def test_whatever_kills_a_job_its_slots_are_free(keep):
    keeper = keep(2)
    job = dlpar.launch(LONG)
    eventually(lambda: job.run.status == "running", 20, "it runs")
    os.kill(job._guardian.pid, signal.SIGKILL)
    assert dlpar.spmd(lambda comm: comm.rank, workers=2) == [0, 1]
    eventually(lambda: state(keeper)["taken"] == 0, 5, "both are free")


def test_a_job_of_more_ranks_than_there_are_slots_runs_alone(keep):
    keeper = keep(2)
    small = asked(keeper, 1)
    assert begins(small)
    large, behind = asked(keeper, 64), asked(keeper, 1)
    assert stays(large) and behind.told[-1]["ahead"] == 1
    small.close()
    assert begins(large) and stays(behind) and state(keeper)["taken"] == 2
    for talk in (large, behind):
        talk.close()


def test_who_holds_fewest_slots_is_next_and_nobody_overtakes(keep, monkeypatch):
    users = iter([7, 8, 7, 9])  # as the kernel would tell of three accounts
    monkeypatch.setattr(slots, "user_of", lambda _: next(users, 0))
    keeper = keep(4)
    running = asked(keeper, 2)
    assert begins(running)
    large, again, small = asked(keeper, 4), asked(keeper, 1), asked(keeper, 1)
    # Two slots are free, but 8, who has none and came first, wants four, and is not passed by.
    assert large.told[-1]["ahead"] == 0 and again.told[-1]["ahead"] == 1
    assert small.told[-1]["ahead"] == 1, "7 holds two, and 9 none: the later one is ahead"
    assert stays(large) and stays(again) and stays(small)
    running.close()
    assert begins(large) and stays(again) and stays(small)
    large.close()
    assert begins(again) and begins(small)
    for talk in (again, small):
        talk.close()


def test_a_pause_lets_nobody_begin_and_is_for_teachers_alone(keep, monkeypatch):
    keeper = keep(2)
    with Talk(keeper.path, {"pause": True}) as talk:
        assert talk.hear() == [{"paused": True}]
    waits = asked(keeper, 1)
    assert waits.told == [{"ahead": 0, "paused": True}] and stays(waits)
    monkeypatch.setattr(slots, "user_of", lambda _: 12345)
    with pytest.raises(NoSlots, match="pause: only teachers may do this"):
        ask(keeper.path, {"pause": False})
    monkeypatch.undo()
    with Talk(keeper.path, {"pause": False}) as talk:
        assert talk.hear() == [{"paused": False}]
    assert begins(waits)
    waits.close()


def test_who_shares_the_keepers_account_has_turns_of_their_own(keep):
    keeper = keep(2)
    ada = asked(keeper, 2, "ada")
    assert begins(ada)
    again, more, bob = (asked(keeper, 2, name) for name in ("ada", "ada", "bob"))
    assert bob.told[-1]["ahead"] == 0, "ada has slots, and bob none"
    ada.close()
    assert begins(bob) and stays(again), "ada has had her turn"
    bob.close()
    assert begins(again)
    cleo = asked(keeper, 1, "cleo")
    again.close()
    assert begins(cleo) and stays(more)
    for talk in (more, cleo):
        talk.close()


def test_nonsense_and_crowds_harm_nobody_else(keep, monkeypatch):
    monkeypatch.setattr(slots, "user_of", lambda _: 12345)
    keeper = keep(2)
    for rubbish in ([], "x" * 10_000, {"slots": "two"}, {"slots": True}):
        with Talk(keeper.path, rubbish):
            pass
    crowd = [Talk(keeper.path, {"slots": 2}) for _ in range(slots.MOST_EACH + 5)]
    refusals = [_refusal(talk) for talk in crowd]
    assert sum(f"allowed for a user is {slots.MOST_EACH}" in said for said in refusals) >= 5
    for talk in crowd:
        talk.close()
    monkeypatch.undo()
    assert begins(asked(keeper, 2))


@pytest.mark.parametrize(
    "line", [b"[" * 4000, b'{"a":' * 800, b"1" * 4000, b"\xff\xfe", b'{"slots": 1e999}', b"null"]
)
def test_no_line_that_is_sent_ends_the_keeper(keep, line):
    keeper = keep(2)
    with socket.socket(socket.AF_UNIX) as attacker:
        attacker.connect(str(keeper.path))
        attacker.sendall(line + b"\n")
        assert begins(asked(keeper, 2))


def test_a_connection_has_one_question_so_that_nobody_keeps_the_keeper_busy(keep):
    keeper = keep(2)
    with socket.socket(socket.AF_UNIX) as attacker:
        attacker.settimeout(10)
        attacker.connect(str(keeper.path))
        attacker.sendall(b"{}\n" * 2000)
        heard = b""
        with suppress(ConnectionResetError):
            while more := attacker.recv(4096):
                heard += more
    assert heard.count(b"\n") == 1
    assert state(keeper)["slots"] == 2


def test_who_asks_behind_a_crowd_waits_for_his_turn(tmp_path):
    path, crowd = tmp_path / "slots", []
    with listen(path, 0o600) as listener, ThreadPoolExecutor(1) as apart:
        with suppress(BlockingIOError):
            while True:
                crowd.append(socket.socket(socket.AF_UNIX))
                crowd[-1].setblocking(False)
                crowd[-1].connect(str(path))
        late = apart.submit(Talk, path, {})
        assert not wait([late], 0.2).done, "the queue of connections is full"
        # As many as were let in, since the last of the crowd was not; and then the late one.
        taken = [listener.accept()[0] for _ in crowd]
        late.result(5).close()
    for one in (*crowd, *taken):
        one.close()


def test_a_lack_of_descriptors_does_not_end_the_keeper(keep, monkeypatch):
    keeper = keep(2)
    failures = iter([OSError(errno.EMFILE, "too many open files")] * 2)
    accepted = slots.Asker

    def asker(connection):
        for failure in failures:
            connection.close()
            raise failure
        return accepted(connection)

    monkeypatch.setattr(slots, "Asker", asker)
    for _ in range(2):
        with pytest.raises(NoSlots):
            state(keeper)
    assert state(keeper)["slots"] == 2


def test_slots_count_as_taken_whoever_has_their_files(keep):
    keeper = keep(2)
    ada = asked(keeper, 2, "ada")
    assert begins(ada)
    kept = [os.dup(file) for file in ada.files]
    ada.close()
    try:
        found = state(keeper)
        assert found["taken"] == 2 and [(row["who"], row["slots"]) for row in found["holders"]] == [
            ("ada", 2)
        ]
        assert stays(asked(keeper, 1, "bob"))
    finally:
        for file in kept:
            os.close(file)
    eventually(lambda: state(keeper)["taken"] == 0, 5, "they are free")


def test_only_teachers_hear_who_holds_slots(keep, monkeypatch):
    keeper = keep(2)
    monkeypatch.setattr(slots, "user_of", lambda _: 12345)
    assert "holders" not in state(keeper)
    keeper.teachers.add(12345)
    assert state(keeper)["holders"] == []


def test_nobody_keeps_slots_for_long_while_others_wait(keep):
    keeper = keep(2, longest=0.5)
    ada = asked(keeper, 2, "ada")
    assert begins(ada)
    kept = [os.dup(file) for file in ada.files]
    ada.close()
    time.sleep(0.6)
    assert state(keeper)["taken"] == 2, "nobody waits"
    bob = asked(keeper, 2, "bob")
    assert begins(bob) and [row["who"] for row in state(keeper)["holders"]] == ["bob"]
    for file in kept:
        os.close(file)


def test_no_more_jobs_are_ended_than_the_next_one_needs(keep):
    keeper = keep(3, longest=0.3)
    first, second, third = (asked(keeper, 1, name) for name in ("ada", "bob", "cleo"))
    assert begins(first) and begins(second) and begins(third)
    time.sleep(0.4)
    assert begins(asked(keeper, 1, "dan"))
    held = [row["who"] for row in state(keeper)["holders"]]
    assert held == ["bob", "cleo", "dan"], "ada had hers for the longest"


@pytest.mark.slow
def test_a_job_is_told_that_others_wait_for_its_slots(keep):
    keeper = keep(2, longest=0.5)
    job = dlpar.launch(LONG)
    eventually(lambda: job.run.status == "running", 20, "it runs")
    assert begins(asked(keeper, 1, "bob"))
    with pytest.raises(JobFailed, match="others wait for its job slots"):
        job.wait(10)
    assert job.run.status == "stopped"


def _refusal(talk: Talk) -> str:
    try:
        talk.hear()
    except NoSlots as refused:
        return str(refused)
    return ""


@pytest.mark.slow
def test_a_new_keeper_knows_which_slots_are_taken(keep, tmp_path):
    keeper = keep(2)
    job = dlpar.launch(LONG)
    eventually(lambda: job.run.status == "running", 20, "it runs")
    with pytest.raises(OSError, match="another keeper"):
        Keeper(keeper.path, 2)
    other = Keeper(tmp_path / "second", 2)
    other.folder = keeper.folder  # as after a restart
    other._look()
    assert len(other.taken) == 2
    other.close()
    job.stop()


def test_without_its_keeper_a_job_says_so(monkeypatch, tmp_path):
    monkeypatch.setenv("DLPAR_SLOTS", str(tmp_path / "nobody"))
    with pytest.raises(JobFailed, match="job slots: no keeper runs at"):
        dlpar.launch(Experiment(workers=1, steps=1)).wait(10)


def test_a_machine_of_many_cores_has_as_many_slots_as_are_allowed(monkeypatch):
    for cores, expected in ((2, 4), (256, MOST)):
        monkeypatch.setattr(classroom, "cores", lambda cores=cores: cores)
        assert classroom.usual_slots() == expected


@pytest.mark.slow
def test_the_command_gives_out_slots_pauses_and_tells(tmp_path):
    path = str(tmp_path / "slots")
    command = [sys.executable, "-m", "dlpar.cli", "slots", "--socket", path]
    keeper = subprocess.Popen([*command, "--ranks", "3"], stdout=subprocess.PIPE, text=True)
    try:
        assert keeper.stdout.readline() == f"3 job slots at {path}\n"
        said = subprocess.run([*command, "--pause"], capture_output=True, text=True, timeout=20)
        assert json.loads(said.stdout) == {"paused": True}
        said = subprocess.run([*command, "--look"], capture_output=True, text=True, timeout=20)
        counts = {"slots": 3, "taken": 0, "waiting": 0, "paused": True, "holders": []}
        assert json.loads(said.stdout) == counts
        kill(descendants(keeper.pid))
        eventually(lambda: is_kept(Path(path)), 10, "another process keeps the slots")
    finally:
        keeper.send_signal(signal.SIGTERM)
        assert keeper.wait(5) == 128 + signal.SIGTERM
    said = subprocess.run([*command, "--look"], capture_output=True, text=True, timeout=20)
    assert said.returncode == 1 and "no keeper runs at" in said.stderr


@pytest.mark.slow
@pytest.mark.parametrize("apart", [0.0, 0.01])
def test_a_second_signal_leaves_no_keeper(tmp_path, apart):
    """A hub ends its services, and the kernel ends them with the hub: both at once."""
    command = [sys.executable, "-m", "dlpar.cli", "slots", f"--socket={tmp_path / 'slots'}", "--ranks=2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as keeper:
        keeper.stdout.readline()
        eventually(lambda: descendants(keeper.pid), 5, "the server is there")
        server = descendants(keeper.pid)
        keeper.terminate()
        time.sleep(apart)
        keeper.terminate()
        try:
            assert keeper.wait(5) != 0 and wait_gone(server, 2) == []
        finally:
            kill([keeper.pid, *server])
