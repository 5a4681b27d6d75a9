"""The experiment: from a plan to a finished run folder.

plan        everything that decides what a run computes; the one home of defaults and their checks
algorithms  all algorithms by name, and what each is given
inputs      the dataset and environment that a plan names, checked against each other; margins: where steps give them
initialise  starting from another run
training    `fit`, `train` and `resume`: the parent process
workers     the processes that train seeds, as the parent sees them; worker: what such a process does
trainer     one way through a run; offline_trainer, acting_trainer and streaming_trainer say how its steps are taken
run         what is in a run folder; folders: making and locking it; summary: scores and curves; loggers: elsewhere
trust       which modules may be imported because of a name
stopping    Ctrl-C and SIGTERM; watchdog: calls that never come back
"""
