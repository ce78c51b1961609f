"""What the learning curves show: claims, the runs behind them, and the report."""
