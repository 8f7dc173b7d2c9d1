"""What every process needs: settings, logs, metrics, health, a clock, an orderly shutdown."""
