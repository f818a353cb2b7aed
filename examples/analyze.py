"""`kce analyze` for spark-submit, which says where and with how much memory it runs:

spark-submit --master spark://host:7077 --conf spark.executor.memory=1g examples/analyze.py --report r.html *.pcapng
"""

import sys

from harness.cli import main

sys.exit(main(["analyze", *sys.argv[1:]]))
