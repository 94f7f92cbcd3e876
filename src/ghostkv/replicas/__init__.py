"""One service of several servers: a relay in front of replicas that share a store, and Ray, which runs them."""
