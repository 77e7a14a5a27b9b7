"""What can be done with a trained policy: act, evaluate, export."""
