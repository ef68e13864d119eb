"""Every test run has a lock and a cache of its own: it neither waits for others nor uses theirs."""

import os
import tempfile

for variable in ("FRAMEWORKTAX_RUNTIME_DIR", "FRAMEWORKTAX_CACHE"):
    if variable not in os.environ:
        os.environ[variable] = tempfile.mkdtemp(prefix="frameworktax-tests-")
