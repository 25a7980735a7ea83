"""The simulated world's inside: one process holds all ranks, and a scheduler decides who runs next.

`network` says when messages arrive, `mailbox` who takes which, `tasks` what a rank
runs on, `simulator` whose turn it is; `pace` and `charge` turn work into seconds.
"""

from __future__ import annotations
