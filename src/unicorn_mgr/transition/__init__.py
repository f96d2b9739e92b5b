"""The move of a job from one epoch to the next: what is held, what is missing, who does it."""
