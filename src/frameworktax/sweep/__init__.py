"""Sweeps: a study file becomes points, open points become jobs, an executor measures them.

``study`` and ``grid`` give the points, ``status`` which of them a store holds and how long the
others take, ``schedule`` the sessions and their order, ``plan`` all of that before anything is
measured; ``run`` carries it out with an executor: that of this host (``executor``), or ``ray`` with
``node``, its other side.
"""
