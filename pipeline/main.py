"""The program that spark-submit and EMR Serverless start: freshq-pipeline in the packed environment."""

import sys

from freshq_pipeline.__main__ import main
from freshq_pipeline.cluster.verdict import with_verdict

if __name__ == "__main__":
    sys.exit(with_verdict(main))
