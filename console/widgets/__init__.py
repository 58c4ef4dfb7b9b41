"""Line-based widgets that repaint only changed cells; independent of the engine."""
