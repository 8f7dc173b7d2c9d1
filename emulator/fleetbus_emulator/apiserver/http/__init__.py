"""HTTP listeners and kubeconfigs; requests and responses as the handlers see them."""
