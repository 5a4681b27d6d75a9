"""Runs: from a plan to a finished run folder. Nothing here knows the command line: who shows a run is a listener.

- `plan`: everything that decides what a run computes; the one home of defaults and their checks
- `algorithms`: all algorithms by name, and what each is given
- `inputs`: the dataset and environment that a plan names, checked against each other
- `embedded`: datasets made from native systems; `recorded`: benchmarks' tasks; `margins`: where steps give them
- `start`: `train` and `resume`, the parent process; `extend`: a run continues for more steps
- `warm_start`: starting from another run
- `progress_events`: what a run reports, and to whom; `loggers`: who writes it down
- `run`: what is in a run folder; `folders`: making and locking it; `summary`: scores and curves
- `machine`: cores, devices, and what a run's numbers depend on
- `processes`: `workers`, those that train seeds, as the parent sees them; `worker`, what such a process does;
  `collectors` and `sharing`, those that help one; `stopping`, Ctrl-C and SIGTERM; `watchdog`, calls that never return
- `trainers`: `trainer`, one way through a run; `offline`, `online`, `streaming`, how steps are taken; `choose`, which
- `trust`: which modules may be imported because of a name
- `victim`: a trained agent as the victim of adversarial corruption
"""
