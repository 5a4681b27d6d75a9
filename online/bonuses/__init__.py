"""Exploration bonuses: rewards for what is new to an agent, beside those of the task (docs/exploration.md)."""
