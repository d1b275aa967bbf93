"""Helpers for long-running work on many inputs.

Handling of damaged input (`faults`), progress reporting (`progress`), worker processes (`jobs`), and a folder that lets
interrupted work continue (`state`).
"""
