"""What long pieces of work over many inputs have in common.

Whether a damaged input ends the work (`faults`), how far it is (`watching`), several processes (`jobs`), and a folder
that a cut-off piece of work goes on from (`state`).
"""
