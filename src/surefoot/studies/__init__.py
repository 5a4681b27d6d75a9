"""What trains or judges several runs: comparisons, searches, selections, suites."""
