"""Reading what was recorded: open, tabulate, explain, picture and recover a bag, without ROS."""
