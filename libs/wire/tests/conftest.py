import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture()
def endpoint(tmp_path):
    return "ipc://%s/peers" % tmp_path
