"""Nothing: NeoRL-2's Simglucose imports a module of this name, which newer setuptools lack, and uses nothing of it."""
