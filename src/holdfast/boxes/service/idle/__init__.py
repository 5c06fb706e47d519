"""What happens to boxes that nobody uses: how idleness is noticed, and how boxes sleep and wake."""
