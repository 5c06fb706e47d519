"""What sessions keep beside their threads, in SQLite: messages, memories, workflows."""
