"""What a run is made of: options, presets, and the algorithm that they describe."""
