"""What truestep promises about speed and learning, measured against peers on the same machine in the same run."""
