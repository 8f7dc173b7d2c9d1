"""The way to one API server: kubeconfig, TLS, credentials, sessions, and who answers there."""
