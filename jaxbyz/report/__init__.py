"""Results for people: tables and pictures."""
