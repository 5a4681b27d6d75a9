"""Experiment trackers that hear a run beside its own `metrics.jsonl`.

- `options`: what each can be given (`logger_options.NAME=`) and where a value comes from
- `ids`: by which a resumed run continues what it has there
- `background`: trackers neither end nor delay training
- `tensorboard`, `wandb`, `mlflow`: one each; `numbers`: what of an event is logged
"""
