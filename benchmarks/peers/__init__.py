"""What truestep is measured against. Each peer is a program of its own that prints one reading."""
