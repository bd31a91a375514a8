"""Evaluate a dataset as a Ray job; the arguments are those of `evalpipe run`.

    ray job submit --working-dir . -- python jobs/run_benchmark.py configs/logic-5k.yaml -o /shared/runs

The output folder must be absolute or s3://..: the job's own folder is a copy that is thrown away.
"""

import sys

from evalpipe.cli.main import main

if __name__ == "__main__":
    main(["run", *sys.argv[1:]])
