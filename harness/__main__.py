"""`python -m kce.harness` is `kce`."""

import sys

from kce.harness.command import main

sys.exit(main())
