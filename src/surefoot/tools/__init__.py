"""What can be done beside training: datasets that are generated, certificates, safe sets and filters."""
