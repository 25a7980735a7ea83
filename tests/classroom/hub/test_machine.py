"""Job slots of a hub on one machine: who gives them out."""

from __future__ import annotations

import pytest

from classroom.hub.test_settings import settings

pytest.importorskip("jupyterhub", reason="JupyterHub is not installed: pip install 'dlpar[hub]'")
from traitlets.config import Config

from dlpar.classroom.hub import machine
from dlpar.classroom.hub.classroom import classroom


@pytest.mark.parametrize(("slots", "named"), [(0, "/run/dlpar/slots"), (4, "")])
def test_without_a_limit_students_servers_find_no_keeper(slots, named, tmp_path, monkeypatch):
    monkeypatch.setenv("DLPAR_SLOTS", named)
    c = Config()
    c.JupyterHub.services = []
    given = machine.give_out_slots(c, settings(tmp_path, slots=slots))
    assert c.JupyterHub.services == []
    classroom(c, str(tmp_path), ["grace"], slots=given)
    assert c.Spawner.environment.get_value({})["DLPAR_SLOTS"] == ""
