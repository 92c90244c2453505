"""What spark-submit and EMR Serverless start: the freshq-pipeline command, from the packed environment."""

import sys

from freshq_pipeline.__main__ import main
from freshq_pipeline.cluster.verdict import with_verdict

if __name__ == "__main__":
    sys.exit(with_verdict(main))
