"""What agents say to each other: messages, agreement, graphs, and who is Byzantine."""
