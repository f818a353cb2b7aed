"""Live traffic into pcapng: streams of this process (recorder), and interfaces (live, packet_filter)."""
