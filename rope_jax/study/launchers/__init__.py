"""Who runs the trainings of a study: this process, several processes, or a cluster."""
