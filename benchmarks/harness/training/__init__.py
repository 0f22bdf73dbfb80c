"""What runs in the ranks of a contender: training loops, frameworks, and servers."""
