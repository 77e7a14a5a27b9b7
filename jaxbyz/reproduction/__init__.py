"""Reproduce the six figures of the paper: what each shows, the trainings it needs, and the paper's own curves."""
