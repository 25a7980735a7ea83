"""A classroom: one JupyterHub, thirty students, one teacher.  ``dlpar hub`` starts it; README.md says the rest.

    dlpar hub ─► settings.py      what was asked, and what is refused
                 jupyterhub_config.py ─► priority.py   hub and proxy go before what students compute
                                    ├─► machine.py     the part that is this machine's: login, accounts, ports
                                    └─► classroom.py   the part that is the same on every kind of hub
    JupyterHub ─► student.py      as the student: her own copy of the labs (copies.py), then her JupyterLab
              │      ├ trust.py      labs nobody has touched are trusted
              │      └ jobs_api.py   for the teacher's page: her jobs (jobs.py), what is sent to her (offers.py)
              ├► teacher.py       the teacher's page, a service: students.py asks, answers.py counts predictions
              ├► the keeper of job slots, where the machine is ours (dlpar.jobs.slots)
              └► the idle culler

What runs inside the hub imports JupyterHub and the standard library only, so that a hub can have dlpar
without torch; this file therefore imports nothing.
"""

from __future__ import annotations
