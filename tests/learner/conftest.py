"""Where ranks meet, torch asks the resolver for the name of everyone who connects; one that loses a query makes that
wait 5 s. No test depends on the resolver: here it has one second and one try."""

import os

os.environ["RES_OPTIONS"] = "timeout:1 attempts:1"
