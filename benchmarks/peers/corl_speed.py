"""IQL updates per second of CORL's script (its own buffer, networks, optimisers and update), one thread."""

from pathlib import Path

import common
import corl_script
import torch


def main() -> None:
    parser = common.speed_arguments(__doc__)
    parser.add_argument("--source", type=Path, required=True, help="CORL's algorithms/offline/iql.py")
    options = parser.parse_args()
    torch.set_num_threads(1)
    script = corl_script.load_script(options.source)
    script.set_seed(options.seed)
    data = common.random_rows(options.seed)
    corl_script.normalise(script, data)
    buffer = corl_script.fill_buffer(script, data)
    trainer = corl_script.iql_trainer(
        script, common.OBSERVATION_SIZE, common.ACTION_SIZE, options.updates + common.WARM_UP
    )
    common.report_speed(
        "corl",
        lambda updates: corl_script.run_updates(trainer, buffer, updates, common.BATCH_SIZE),
        options.updates,
    )


if __name__ == "__main__":
    main()
