"""`python -m kce.harness` is `kce`."""

import sys

from kce.harness.cli import main

sys.exit(main())
