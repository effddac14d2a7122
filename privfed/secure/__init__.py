"""Secure aggregation: the server learns noisy sums over nodes, and nothing about a single node.

keys           identities of nodes, agreed pair keys, encrypted shares
shamir         threshold sharing of secrets
graph          who shares secrets and masks with whom
noise_shares   every node's part of the noise, in components that can be removed again
terms          the public frame of a run, which nodes check
journal        what a node remembers
node           the node's side of the protocol
aggregator     the server's side
"""
