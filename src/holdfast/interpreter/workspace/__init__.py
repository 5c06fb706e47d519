"""The content of an interpreter's box: checkout, context files, volumes, templates."""
