"""Constraints on costs: their settings, critics and multipliers, and the checks of costs and margins."""
