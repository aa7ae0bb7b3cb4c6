"""The ground: what acting and learning share. Imports none of the other packages."""
