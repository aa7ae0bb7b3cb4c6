"""What of a run can be reached, by whom, and what protects it; and what the machine is like.

record, /targets ──► processes of this machine ──► their sockets ──► each asked by a stranger ──► exposures
"""
