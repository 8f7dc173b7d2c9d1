"""Applied-offset checkpoints: what proves that stream and store have lost nothing (B17, P11)."""
