"""Why a run is as fast as it is, and not faster: seven marks along the ring, and one verdict.

    ticks ─► built ─► accepted ─► drawn ─► committed ─► published ─► adopted ─┐
      ▲                                                                       │
      └───────────────────────────────────────────────────────────────────────┘

    events, commands ─► Observer ─► Snapshot, one a second ─► Figures of the last ten ─► judge ─► Finding
                                                                                  Steady ◄──────┘

Everything behind the snapshots is a function of them, so a recorded incident is a test. docs/attribution.md has the
order of the questions and the reason of every threshold.
"""
