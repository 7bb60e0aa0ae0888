"""When everything happens: the longest path through a schedule, and what memory it takes over time."""
