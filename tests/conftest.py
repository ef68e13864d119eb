"""Every test run holds a lock of its own: it does not wait for measurements outside of it."""

import os
import tempfile

if "FRAMEWORKTAX_RUNTIME_DIR" not in os.environ:
    os.environ["FRAMEWORKTAX_RUNTIME_DIR"] = tempfile.mkdtemp(prefix="frameworktax-tests-")
