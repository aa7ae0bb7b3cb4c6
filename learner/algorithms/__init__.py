"""One algorithm a file, read top to bottom: config, loss, update."""
