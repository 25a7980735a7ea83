"""Start a job, guard it while it runs, and leave nothing behind.

    launch() ─► guard.py ─► mpiexec ─► stub.py ─► fork_server.py ─► rank.py   (warm)
                   │             └─► rank.py                                  (cold)
                   └ ends everything when its owner, a rank or the clock says so

    rank.py ─► record.py ─► run folder ─► tail.py ─► global_steps.py ─► run.py, summary.py

The guardian and the stubs use the standard library only, so that they start in
milliseconds; this file therefore imports nothing.
"""
