"""A classroom: one JupyterHub, thirty students, one teacher.  ``dlpar hub`` starts it; README.md says the rest.

    dlpar hub ─► settings.py      what was asked, and what is refused
                 jupyterhub_config.py ─► machine.py     the part that is this machine's: login, accounts, ports
                                         classroom.py   the part that is the same on every kind of hub
    JupyterHub ─► student.py      as the student: her own copy of the labs, then her JupyterLab
              │      └ student_server.py   trusts untouched labs; tells the teacher's page her jobs
              ├► teacher.py       the teacher's page, a service; answers.py counts predictions
              ├► the keeper of job slots, on a machine of our own (dlpar.jobs.slots)
              └► the idle culler

The modules that run inside the hub import JupyterHub and the standard library only, so that a hub can have dlpar
without torch; this file therefore imports nothing.
"""
