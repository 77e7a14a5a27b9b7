"""A run from start to folder: training, checkpoints, resuming, sweeps and reporters."""
