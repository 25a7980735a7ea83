"""JupyterHub for thirty students and one teacher. ``dlpar hub`` starts it. See README.md.

    dlpar hub ─► classroom.py     checks the settings
                 jupyterhub_config.py ─► classroom.py: JupyterHub's configuration, of any hub and of this machine
    JupyterHub ─► student.py      as the student: her own copy of the labs, then her JupyterLab
              │      └ student_server.py   reports her jobs to the teacher's page
              ├► teacher.py       the teacher's page, a service
              ├► the keeper of job slots, on a machine of our own (dlpar.jobs.slots)
              └► the idle culler

The modules that run inside the hub import only JupyterHub and the standard library, so a hub can have dlpar
without torch. Therefore this file imports nothing.
"""
