"""What `skylark demo` shows: the main job from end to end, in this process and on one loop."""
