"""`truestep profile`: what a live process of a run is doing, without stopping it.

RUN, actor-3 ──► driver's /targets ──► the process ──┬─► py-spy, on this machine, where ptrace is allowed
                                                     └─► the process's own pages (common.profile_pages)
                                                           └─► flame graph, stacks, torch trace, allocations
"""
