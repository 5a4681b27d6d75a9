"""IQL updates per second of d3rlpy: its default IQL, its own `fit` and sampling, one thread."""

import common
import d3rlpy
import torch


def main() -> None:
    options = common.speed_arguments(__doc__).parse_args()
    torch.set_num_threads(1)
    d3rlpy.seed(options.seed)
    data = common.random_rows(options.seed)
    dataset = d3rlpy.dataset.MDPDataset(
        data["observations"], data["actions"], data["rewards"], data["terminals"], data["timeouts"]
    )
    # IQLConfig's defaults are the paper's: batch 256, two hidden layers of 256, expectile 0.7, temperature 3.
    config = d3rlpy.algos.IQLConfig(batch_size=common.BATCH_SIZE)
    algorithm = config.create(device="cpu:0")

    def run(updates: int) -> None:
        algorithm.fit(
            dataset,
            n_steps=updates,
            n_steps_per_epoch=updates,
            show_progress=False,
            logger_adapter=d3rlpy.logging.NoopAdapterFactory(),
        )

    common.report_speed("d3rlpy", run, options.updates)


if __name__ == "__main__":
    main()
