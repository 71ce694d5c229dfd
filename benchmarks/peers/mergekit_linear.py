"""mergekit's `linear` on two models, or no more than its start.

python mergekit_linear.py ONE TWO INTO [SHARE SHARE]
"""

from __future__ import annotations

import sys

from mergekit.config import MergeConfiguration
from mergekit.merge import MergeOptions, run_merge


def main(one: str, two: str, into: str, *shares: str) -> None:
    if shares:
        models = [
            {"model": {"model": {"path": folder}}, "parameters": {"weight": float(share)}}
            for folder, share in zip((one, two), shares, strict=True)
        ]
        order = MergeConfiguration.model_validate({"merge_method": "linear", "models": models})
        run_merge(
            order, into, MergeOptions(copy_tokenizer=False, write_model_card=False, quiet=True)
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
