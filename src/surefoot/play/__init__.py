"""Policies and planners in a simulator: executed at a fixed rate, planned, filmed, timed."""
