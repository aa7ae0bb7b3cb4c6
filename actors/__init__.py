"""Acting: environments, policies, rollouts. May import `common` only."""
