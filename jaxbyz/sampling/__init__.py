"""From a policy to episodes, and from episodes to a gradient estimate."""
