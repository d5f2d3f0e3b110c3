"""The only importer of Ray's internals; everything else goes through what is exported here."""
