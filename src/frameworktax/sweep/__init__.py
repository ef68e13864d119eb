"""Sweeps: a study file becomes points, open points become jobs, an executor measures them.

``study`` and ``grid`` give the points, ``status`` which of them a store holds, ``schedule`` the
sessions and their order, ``run`` carries them out with an executor (``local``, ``ray``).
"""
