"""Learning: intake, algorithms, gradient steps. May import `common` only; runs without ray and gymnasium."""
