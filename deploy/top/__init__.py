"""`truestep top`: a live run in a terminal, from any machine that reaches its driver.

    driver's /targets ──► every process's /metrics ──► Scrape ──► Window ──► figures (pure) ──► view ──► terminal

Nothing is asked of the run but what Prometheus asks of it as well.
"""
