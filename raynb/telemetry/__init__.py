"""What a run tells about itself: events, the channel that carries them, history and digest."""
