"""``dlpar slots``: a limit on ranks that all users of this machine share."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer


def slots(
    ranks: Annotated[
        str | None,
        typer.Option(
            metavar="N", help="How many may run at the same time; default: 2 for each core, at most 200."
        ),
    ] = None,
    pause: Annotated[bool, typer.Option("--pause", help="Let no further job begin.", metavar="")] = False,
    go_on: Annotated[bool, typer.Option("--go-on", help="End a pause.", metavar="")] = False,
    look: Annotated[
        bool, typer.Option("--look", help="Say how many are taken, as JSON.", metavar="")
    ] = False,
    teachers: Annotated[
        str, typer.Option(metavar="NAMES", help="System accounts that may pause, besides root.")
    ] = "",
    socket: Annotated[
        str | None, typer.Option(metavar="PATH", help="Default: $DLPAR_SLOTS, or /run/dlpar/slots.")
    ] = None,
) -> int:
    """Give out this machine's job slots in fair turns, until Ctrl-C; or ask who does, or pause it.

    Real and paced jobs of all users then wait in one queue; simulated ones take no slot.
    A job of more ranks than there are slots takes them all, and runs alone.
    """
    from dlpar.cli import BadRequest
    from dlpar.jobs.slots import USUAL, NoSlots, ask, keeper_socket, usual_slots

    if ranks is not None and not ranks.isdecimal():
        raise BadRequest(f"--ranks: got {ranks!r}, allowed is a whole number from 1 to 200")
    if pause + go_on + look > 1:
        raise BadRequest("--pause, --go-on, --look: got more than one, allowed is one of them")
    path = Path(socket) if socket else keeper_socket() or USUAL
    if not (pause or go_on or look):
        return _serve(path, int(ranks) if ranks else usual_slots(), _numbers(teachers))
    try:
        said = ask(path, {"pause": pause} if pause or go_on else {})
    except NoSlots as error:
        print(f"dlpar slots: {error}", file=sys.stderr)
        return 1
    print(json.dumps(said))
    return 0


def _serve(path: Path, ranks: int, teachers: tuple[int, ...]) -> int:
    from dlpar.cli import BadRequest
    from dlpar.jobs.slots import Keeper

    asked_to_end: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: asked_to_end.append(number))
    try:
        keeper = Keeper(path, ranks, teachers)
    except ValueError as error:
        raise BadRequest(f"--ranks: {error}".replace("slots: ", "", 1)) from None
    except OSError as error:
        print(f"dlpar slots: {error}", file=sys.stderr)
        return 1
    print(f"{ranks} job slots at {path}", flush=True)
    try:
        keeper.serve(until=lambda: bool(asked_to_end))
    finally:
        keeper.close()
    return 128 + asked_to_end[0]


def _numbers(names: str) -> tuple[int, ...]:
    import pwd

    from dlpar.cli import BadRequest

    try:
        return tuple(pwd.getpwnam(name.strip()).pw_uid for name in names.split(",") if name.strip())
    except KeyError:
        raise BadRequest(f"--teachers: got {names!r}, allowed is names of accounts on this machine") from None
