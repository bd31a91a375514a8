"""Measure what a server carries, as a Ray job; the arguments are those of `evalpipe loadtest`.

    ray job submit --working-dir . -- python jobs/load_test.py capacity --base-url http://.. -o /shared/runs

It sends from the job's own process. The output folder must be absolute or s3://..: the job's own folder is a copy that
is thrown away.
"""

import sys

from evalpipe.cli.main import main

if __name__ == "__main__":
    main(["loadtest", *sys.argv[1:]])
