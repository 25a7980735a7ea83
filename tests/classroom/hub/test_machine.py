"""Job slots of a hub on one machine: who gives them out, and who may pause."""

from __future__ import annotations

import pytest

from classroom.hub.classroom import run_apart
from classroom.hub.test_settings import settings
from dlpar.jobs.slots import NoSlots

pytest.importorskip("jupyterhub", reason="JupyterHub is not installed: pip install 'dlpar[hub]'")
from traitlets.config import Config

from dlpar.classroom.hub import machine, teacher
from dlpar.classroom.hub.classroom import classroom


@pytest.mark.parametrize(("slots", "named"), [(0, "/run/dlpar/slots"), (4, "")])
def test_without_a_limit_students_servers_find_no_keeper(slots, named, tmp_path, monkeypatch):
    monkeypatch.setenv("DLPAR_SLOTS", named)
    c = Config()
    c.JupyterHub.services = []
    given = machine._give_out_slots(c, settings(tmp_path, slots=slots))
    assert c.JupyterHub.services == []
    classroom(c, str(tmp_path), ["grace"], slots=given)
    assert c.Spawner.environment.get_value({})["DLPAR_SLOTS"] == ""


def test_who_may_not_pause_hears_why(tmp_path, monkeypatch):
    monkeypatch.setenv("DLPAR_SLOTS", "")
    with pytest.raises(NoSlots, match="nobody gives them out here"):
        run_apart(teacher.ask_keeper({"pause": True}))
    assert run_apart(teacher.queue()) is None
