"""Polyarm core: coordination of several robot arms, each with a language model of its own. Knows no ROS."""
