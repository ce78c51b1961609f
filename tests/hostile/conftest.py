import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
for folder in (ROOT / "hostile", ROOT / "fuzz", ROOT / "unit" / "simulator", ROOT / "unit" / "broker"):
    sys.path.insert(0, str(folder))
