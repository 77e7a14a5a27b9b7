"""jaxbyz: Byzantine-fault-tolerant federated policy gradient in JAX."""
