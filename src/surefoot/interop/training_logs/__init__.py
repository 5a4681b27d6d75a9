"""Training logs of other libraries as finished run folders, which `results`, `report` and `compare` read.

- `seed_log`: what is known of one seed, whatever wrote it; `found`: every seed below some paths
- `sb3`, `wandb_history`, `tensorboard_events`: one kind of file each
- `titles`: algorithm, environment and seed from the names of folders and runs
- `write`: seeds of one algorithm and task as a run folder
"""
