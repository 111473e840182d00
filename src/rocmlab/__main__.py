"""`python3 -m rocmlab`: the command line without installing anything."""

import sys

from rocmlab.cli import main

sys.exit(main())
