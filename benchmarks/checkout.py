"""Puts the checkout on the path, for benchmarks that measure with what tests share: `import checkout`."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))
