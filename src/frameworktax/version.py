"""The version, read by the build and by ``frameworktax --version``."""

__version__ = "0.1.0"
