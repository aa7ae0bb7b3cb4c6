"""Stall attribution: facts, figures, verdicts, and incidents that were recorded."""
