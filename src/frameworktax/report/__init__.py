"""Showing results: a document becomes blocks, and blocks become text; nothing here measures.

``run_blocks``, ``compare_blocks`` and ``trace_blocks`` return the blocks of a document,
``render_terminal``, ``render_markdown`` and ``html`` know blocks only. ``charts`` fills the
specifications of pictures in ``page/``; ``json_document`` writes and reads documents.
"""
