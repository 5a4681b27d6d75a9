"""Safety filters: they let an action pass where the constraint stays kept, and give another where it would not."""

from surefoot.safe.filters.safety_filter import BarrierQP, Filtered, LearnedValue, LeastRestrictive, SafetyFilter

__all__ = ["BarrierQP", "Filtered", "LearnedValue", "LeastRestrictive", "SafetyFilter"]
