"""What pages and clients follow while it happens."""
