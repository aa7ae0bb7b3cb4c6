"""`truestep report`: what a run did, or two runs side by side, as one HTML page that needs nothing else.

    registry (read only) ──► facts ──► history (columns) ──► charts (SVG), tables ──► page (HTML, one file)

Only `facts` and `differences` read the registry, and only `page` writes; everything between is a function of values.
"""
