"""Go on with a stored run as a Ray job; the arguments are those of `evalpipe resume`.

ray job submit --working-dir . -- python jobs/resume.py /shared/runs/NAME
"""

import sys

from evalpipe.cli.main import main

if __name__ == "__main__":
    main(["resume", *sys.argv[1:]])
