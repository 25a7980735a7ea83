"""Commands for a class: ``dlpar hub``, ``slots``, ``release`` and ``grade``. See :mod:`dlpar.classroom`."""

from __future__ import annotations

import json
import multiprocessing
import os
import pwd
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from socket import AF_INET, AF_INET6, create_server
from typing import Annotated

import platformdirs
import typer

from dlpar.cli import BadRequest, Failed, Stops
from dlpar.config.paths import private_folder
from dlpar.course import release as releasing
from dlpar.jobs.control_groups import cores
from dlpar.jobs.processes import die_with_parent
from dlpar.jobs.scratch import lock
from dlpar.jobs.slots import LONGEST_TURN, MOST, USUAL, Keeper, ask, keeper_socket

# ---- a hub -----------------------------------------------------------------------


def hub(
    users: str = "student",
    teachers: str = "teacher",
    accounts: str = "listed",
    address: str = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535)] = 8000,
    certificate: str | None = None,
    key: str | None = None,
    labs: str | None = None,
    idle: Annotated[int, typer.Option(min=1, max=10_080)] = 60,
    slots: Annotated[int | None, typer.Option(min=0, max=MOST)] = None,
    folder: str | None = None,
    config: str | None = None,
) -> int:
    """Start a JupyterHub for a class.

    Each user gets her own copy of the labs, which no update overwrites. The hub listens on loopback by
    default. Ctrl-C stops it. dlpar/classroom/hub/README.md says how to run it for a class, and what else it
    needs.

    Parameters
    ----------
    users : NAMES
        Users who may log in: names separated by commas, or @GROUP with system accounts.
    teachers : NAMES
        Users who may open the teacher's page.
    accounts : KIND
        listed: names that share a password, to try it on loopback; system: this machine's accounts, each
        isolated from the others, which needs root.
    address : IP
        Address to listen on.
    port : N
        Port to listen on, 1 to 65535.
    certificate : FILE
        TLS certificate, in PEM format.
    key : FILE
        Private key of the certificate, in PEM format.
    labs : FOLDER
        The shared labs; default: this checkout's. If labs have solutions, students get a version without
        them.
    idle : MINUTES
        A server ends after this time without activity or a running job.
    slots : N
        Ranks of all users together that may run at the same time; 0: no limit; default: 2 for each core,
        at most 200.
    folder : FOLDER
        The hub's private folder; default: dlpar/hub in your data folder, or below /var/lib for root.
    config : FILE
        A jupyterhub_config.py that is read last.
    """
    if find_spec("jupyterhub") is None:
        raise Failed("JupyterHub is not installed; `pip install 'dlpar[hub]'` installs it")
    from dlpar.classroom.hub import classroom as machine

    own = "/var/lib/dlpar-hub" if os.getuid() == 0 else f"{platformdirs.user_data_dir('dlpar')}/hub"
    settings = machine.Settings(
        accounts=accounts,
        users=tuple(name for name in _names(users) if name not in _names(teachers)),
        teachers=_names(teachers),
        address=address,
        port=port,
        labs=os.path.abspath(labs or releasing.usual_labs()),
        folder=os.path.abspath(folder or own),
        certificate=certificate and os.path.abspath(certificate),
        key=key and os.path.abspath(key),
        idle=idle,
        slots=usual_slots() if slots is None else slots,
        more=config and os.path.abspath(config),
    )
    machine.proxy_command()  # raises if there is none
    # Refuse an address in use, because the hub would go on without its proxy.
    create_server((address, port), family=AF_INET6 if ":" in address else AF_INET).close()
    own = private_folder(Path(settings.folder))
    if (held := lock(own / "lock", 0.0)) is None:
        raise BadRequest(f"--folder: got '{own}', allowed is a folder in which no other hub runs")
    os.set_inheritable(held, True)  # JupyterHub, which replaces this process, keeps it
    os.umask(0o022)  # students read the labs and the folder of sockets
    settings = machine.without_solutions(settings)
    print(f"labs: {settings.labs}; the hub's own folder: {own}")
    if accounts == machine.LISTED:
        students, teachers = machine.passwords(own)
        print(f"  password of the students {', '.join(settings.users)}: {students}")
        print(f"  password of the teachers {', '.join(settings.teachers)}: {teachers}")
        print("All notebooks run in your own account: nothing keeps users from each other's files.")
    print(f"open http{'s' if settings.certificate else ''}://{address}:{port}", flush=True)
    program = str(Path(machine.__file__).with_name("jupyterhub_config.py"))
    os.chdir(own)  # the hub imports nothing from here (-P)
    os.environ[machine.VARIABLE] = json.dumps(asdict(settings))
    os.execv(sys.executable, [sys.executable, "-P", "-m", "jupyterhub", "-f", program])


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


# ---- job slots -------------------------------------------------------------------


def slots(
    ranks: int | None = None,
    pause: bool = False,
    go_on: bool = False,
    look: bool = False,
    teachers: str = "",
    longest: Annotated[float, typer.Option(min=0.01)] = LONGEST_TURN / 60,
    socket: Path | None = None,
) -> int:
    """Share this machine's job slots fairly.

    The command runs until Ctrl-C. Options ask for the state of slots, or pause jobs. Real and paced jobs of
    all users wait in one queue. Simulated jobs take no slot. A job with more ranks than slots takes all
    slots, and runs alone.

    Parameters
    ----------
    ranks : N
        Ranks that may run at the same time; default: 2 for each core, at most 200.
    pause : flag
        Let no further job begin.
    go_on : flag
        End a pause.
    look : flag
        Report the taken slots as JSON. For a teacher, also report who holds them.
    teachers : NAMES
        System accounts that may pause and see who holds slots, besides root.
    longest : MINUTES
        Maximum time for which a job keeps its slots while others wait. Then the job ends.
    socket : PATH
        Socket of the slots; default: $DLPAR_SLOTS, or /run/dlpar/slots.
    """
    if pause + go_on + look > 1:
        raise BadRequest("--pause, --go-on, --look: got more than one, allowed is one of them")
    path = socket or keeper_socket() or USUAL
    if path.exists() and not path.is_socket():
        raise BadRequest(f"--socket: got {str(path)!r}, allowed is a new path, because this is no socket")
    if not (pause or go_on or look):
        return _serve(path, usual_slots() if ranks is None else ranks, teachers, longest)
    print(json.dumps(ask(path, {"pause": pause} if pause or go_on else {})))
    return 0


def usual_slots() -> int:
    """Return this machine's default number of slots.

    There are two slots for each core, at most :data:`MOST`.
    """
    return min(MOST, 2 * cores())


def _serve(path: Path, ranks: int, teachers: str, longest: float) -> int:
    """Keep the slots until a signal arrives."""
    with Stops() as stops:
        try:
            users = tuple(pwd.getpwnam(name.strip()).pw_uid for name in teachers.split(",") if name.strip())
            keeper = Keeper(path, ranks, users, 60 * longest)
        except KeyError:
            raise BadRequest(f"--teachers: got {teachers!r}, allowed are accounts of this machine") from None
        except ValueError as error:
            raise BadRequest(f"--ranks: {error}".replace("slots: ", "", 1)) from None
        print(f"{ranks} job slots at {path}", flush=True)
        with closing(keeper):
            _keep(keeper, lambda: stops.asked is not None)
    return 128 + stops.asked


def _keep(keeper: Keeper, until: Callable[[], bool]) -> None:
    """Serve in a separate process, and restart this process if it ends too early."""
    while not until():
        server = multiprocessing.get_context("fork").Process(target=_served, args=(keeper, os.getpid()))
        server.start()
        try:
            while server.is_alive() and not until():
                server.join(0.1)
            if not until():
                print(f"dlpar slots: the keeper ended ({server.exitcode}); it starts again", file=sys.stderr)
                time.sleep(1.0)
        finally:  # a second signal interrupts, and multiprocessing would wait for the server
            server.kill()
            server.join()


def _served(keeper: Keeper, parent: int) -> None:
    die_with_parent(parent)
    keeper.serve()


# ---- exercises -------------------------------------------------------------------


Folder = Annotated[Path, typer.Argument()]


def release(into: Folder = Path("release"), labs: Path | None = None, own: Path | None = None) -> int:
    """Make the students' version of the labs.

    This version has no solutions, no hidden tests and no results.

    Parameters
    ----------
    into : FOLDER
        Folder for the students' labs.
    labs : FOLDER
        The masters; default: this checkout's labs.
    own : FOLDER
        A student's own copy, which is also updated; her changes stay.
    """
    masters = _masters(labs)
    copies = [into] if (into / releasing.DELIVERED).exists() else []
    for name, folder, *others in (("FOLDER", into, *copies), ("--own", own, into)):
        if folder and any(folder.resolve().is_relative_to(other.resolve()) for other in (masters, *others)):
            raise BadRequest(f"{name}: got '{folder}', allowed is one outside masters, releases and copies")
    os.umask(0o022)  # so that students can read it
    changed = releasing.release(masters, into)
    print(f"{into}: {len(changed)} files changed" if changed else f"{into}: nothing new")
    for written in releasing.bring(into, own) if own else ():
        print(f"new: {own / written}")
    return 0


def grade(
    where: Annotated[str, typer.Argument()],
    course: Path = Path("course"),
    labs: Path | None = None,
    lab: str = "",
    account: str = "dlpar-grader",
    not_isolated: bool = False,
    seconds: Annotated[int, typer.Option(min=1, max=600)] = 120,
    memory: Annotated[int, typer.Option(min=1, max=64)] = 2,
    at_a_time: Annotated[int | None, typer.Option(min=1, max=64)] = None,
) -> int:
    """Grade the exercises that students handed in.

    Answers are judged on simulated ranks, in a separate account without network. An answer that hangs,
    crashes or is missing gets no points, and does not affect the others. Ctrl-C stops grading. Graded answers
    stay in the gradebook. dlpar/classroom/grading/README.md says more.

    Parameters
    ----------
    where : SUBMISSIONS
        A folder with a folder of notebooks for each student, or a path with {student} in it:
        '/home/{student}/dlpar-labs'.
    course : FOLDER
        nbgrader's course with points and feedback. It is private, and created if missing.
    labs : FOLDER
        The masters; default: this checkout's labs.
    lab : NAMES
        Labs to grade, separated by commas: 00,03; default: all.
    account : NAME
        Unix account without rights in which answers run. This needs root.
    not_isolated : flag
        Run answers in your own account, with your files and network. Use this only for answers that you have
        read.
    seconds : N
        Time limit of one check.
    memory : N
        GiB for each rank of an answer.
    at_a_time : N
        Number of answers judged at the same time; default: one for each core.
    """
    masters = _chosen(_masters(labs), lab)
    if find_spec("nbgrader") is None:
        raise Failed("nbgrader is not installed; `pip install 'dlpar[grading]'` installs it")
    from dlpar.classroom.grading.box import Box

    box = Box(None if not_isolated else account, seconds, memory)
    from dlpar.classroom.grading import grade as grading  # it loads nbgrader, which takes seconds

    if not grading.students(where) or any(Path(where).glob("*.ipynb")):
        raise BadRequest(f"SUBMISSIONS: got {where!r}, allowed is a folder with a folder for each student")
    if not_isolated:
        print("NOT ISOLATED: answers run in your account, with your files and network.", file=sys.stderr)
    book = grading.Course(course)
    if not (exercises := book.take(masters)):
        raise BadRequest(f"--lab: got {lab!r}, allowed is a lab with an exercise")
    side_by_side = 1 if not_isolated else at_a_time or min(cores(), 64)
    for student, one, verdict in grading.grade(book, where, exercises, box, side_by_side):
        print(f"{student}  {one}  {verdict['said'].splitlines()[0]}", flush=True)
    print(f"points: {book.write_grades()}; feedback: {book.folder / 'feedback'}")
    return 0


def _masters(labs: Path | None) -> Path:
    folder = labs or releasing.usual_labs()
    if not folder.is_dir() or not releasing.is_master(folder):
        raise BadRequest(f"--labs: got '{folder}', allowed is a folder of labs with their solutions")
    return folder


def _chosen(masters: Path, names: str) -> list[Path]:
    """Return the masters whose names begin with one of the given prefixes."""
    found = sorted(masters.glob("*.ipynb"))
    wanted = tuple(name.strip() for name in names.split(",") if name.strip()) or ("",)
    for name in wanted:
        if not any(path.stem.startswith(name) for path in found):
            raise BadRequest(f"--lab: got {name!r}, allowed are {', '.join(path.stem for path in found)}")
    return [path for path in found if path.stem.startswith(wanted)]
