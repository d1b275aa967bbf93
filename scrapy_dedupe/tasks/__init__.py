"""Helpers for long-running work on many files.

Input files (`inputs`), handling of damaged input (`faults`), progress reporting (`progress`), worker processes (`jobs`), a
locked folder for saved state (`state`), work folders that let interrupted work continue (`work`), and their names (`outputs`).
"""
