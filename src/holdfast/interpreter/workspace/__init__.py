"""What is in the box of an interpreter: checkout, context files, volumes, templates."""
