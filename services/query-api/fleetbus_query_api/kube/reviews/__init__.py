"""Questions of users about their own rights below /kube."""
