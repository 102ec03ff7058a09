"""Training, evaluation, checkpoints and devices."""
