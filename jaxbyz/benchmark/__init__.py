"""A benchmark of Byzantine-robust federated policy gradient: versioned suites, results, scores and a leaderboard."""
