"""``dlpar slots``: a limit on ranks that all users of this machine share."""

from __future__ import annotations

import json
import pwd
from pathlib import Path

from dlpar.cli import BadRequest
from dlpar.cli.signals import Stops
from dlpar.jobs.slots import USUAL, Keeper, ask, keeper_socket, usual_slots


def slots(
    ranks: int | None = None,
    pause: bool = False,
    go_on: bool = False,
    look: bool = False,
    teachers: str = "",
    socket: Path | None = None,
) -> int:
    """Give out this machine's job slots in fair turns.

    It does so until Ctrl-C; options ask for their state, or pause them. Real and paced jobs of all users then wait
    in one queue; simulated ones take no slot. A job of more ranks than there are slots takes them all, and runs alone.

    Parameters
    ----------
    ranks : N
        How many may run at the same time; default: 2 for each core, at most 200.
    pause : flag
        Let no further job begin.
    go_on : flag
        End a pause.
    look : flag
        Say how many are taken, as JSON.
    teachers : NAMES
        System accounts that may pause, besides root.
    socket : PATH
        Default: $DLPAR_SLOTS, or /run/dlpar/slots.
    """
    if pause + go_on + look > 1:
        raise BadRequest("--pause, --go-on, --look: got more than one, allowed is one of them")
    path = socket or keeper_socket() or USUAL
    if not (pause or go_on or look):
        return _serve(path, usual_slots() if ranks is None else ranks, teachers)
    print(json.dumps(ask(path, {"pause": pause} if pause or go_on else {})))
    return 0


def _serve(path: Path, ranks: int, teachers: str) -> int:
    """Keep the slots until a signal comes."""
    with Stops() as stops:
        try:
            users = tuple(pwd.getpwnam(name.strip()).pw_uid for name in teachers.split(",") if name.strip())
            keeper = Keeper(path, ranks, users)
        except KeyError:
            allowed = "names of accounts on this machine"
            raise BadRequest(f"--teachers: got {teachers!r}, allowed is {allowed}") from None
        except ValueError as error:
            raise BadRequest(f"--ranks: {error}".replace("slots: ", "", 1)) from None
        print(f"{ranks} job slots at {path}", flush=True)
        try:
            keeper.serve(until=lambda: stops.asked is not None)
        finally:
            keeper.close()
    return 128 + stops.asked
