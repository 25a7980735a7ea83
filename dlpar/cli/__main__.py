"""Entry point of ``python -m dlpar.cli``, the same as ``dlpar``."""

import sys

from dlpar.cli import main

sys.exit(main())
