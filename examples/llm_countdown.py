"""A character model searches for expressions: four digits and + - * that come to a number. The longer example.

    python examples/llm_countdown.py                     about six minutes of one core
    python examples/llm_countdown.py --method grpo --kl 0.01

A prompt is `1284:35=`, an answer `4*8+1+2`: each digit once, products first; there are many right ones. Supervised
training copies expressions that were drawn at random. Unlike in examples/llm_addition.py greedy answers improve too,
for what rewards find is not in the teacher's way of answering.
"""

from llm_addition import main

if __name__ == "__main__":
    main("countdown", __doc__, steps=300, learning_rate=1e-4)
