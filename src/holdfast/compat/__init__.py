"""The APIs of other projects, served over Holdfast's own boxes."""
