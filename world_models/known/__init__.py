"""What need not be learned: exact worlds, tasks' rewards, and where their episodes end."""
