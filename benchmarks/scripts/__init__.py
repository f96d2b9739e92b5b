"""What the measured processes run."""
