"""Parts of the suite for accelerators; see gpu_suite.py."""
