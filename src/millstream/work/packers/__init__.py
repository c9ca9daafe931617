"""Packing the keyed values of a map task into blocks, one packer for each form of reducer."""
