"""`python -m harness` is `kce`."""

import sys

from harness.cli import main

sys.exit(main())
