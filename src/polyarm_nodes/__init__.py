"""Polyarm nodes: thin ROS 2 nodes that translate messages to calls of polyarm_core and back."""
