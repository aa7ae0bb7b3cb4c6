"""What a run needs, held against what there is, before anything is started: one table instead of an endless wait.

    this machine ──► local.py ────────┐
    every node ────► ray_preflight ───┴─► checks ──► table, or PreflightError with its shortfalls

A shortfall ends the command with exit code 2; a warning is told and the run goes on.
"""
