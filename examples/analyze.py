"""`kce analyze` for spark-submit, whose options set the cluster and the memory:

spark-submit --master spark://host:7077 --conf spark.executor.memory=1g examples/analyze.py --report r.html *.pcapng
"""

import sys

from kce.harness.cli import main

sys.exit(main(["analyze", *sys.argv[1:]]))
