"""Golden bytes of every schema version: what was written once must decode for ever (wire rule 7)."""
