"""Jobs: start a job, guard it while it runs, and leave nothing behind.

    launch() ─► guard.py ─► mpiexec ─► stub.py ─► fork_server.py ─► rank.py   (warm)
                   │             └─► rank.py                                  (cold)
                   └ ends everything when its owner, a rank or the time limit requires it

    rank.py ─► record.py ─► run folder ─► tail.py ─► global_steps.py ─► run.py, summary.py

The guardian and the stubs use only the standard library, so that they start in milliseconds.  Therefore this
file imports nothing.
"""
