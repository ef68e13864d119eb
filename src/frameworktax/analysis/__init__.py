"""From raw records to a verdict: pure functions, no clock, no engine.

``grouping`` puts records together by point and gives their intervals, ``bill`` says where the time
goes, ``regime`` names what bounds a point, ``curves`` finds the free batch, ``advice``
ranks what to do, ``document`` puts it together; ``whatif``, ``compare`` and ``trace`` stand alone.
"""
