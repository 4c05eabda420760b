"""`python -m moonfold_schemas [--check]`: regenerate the contract documents, or name the stale ones."""

from __future__ import annotations

import sys

from moonfold_schemas.documents import main

sys.exit(main())
