"""Telling a run: one file a format, each reads records only and never measures.

``terminal`` prints, ``html`` writes one offline page and pictures, ``markdown`` writes Markdown
and CSV, ``json_document`` writes and reads the document.
"""
