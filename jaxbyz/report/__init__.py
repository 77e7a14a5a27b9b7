"""Results for people: statistics, tables, pictures, animations and the HTML report."""
