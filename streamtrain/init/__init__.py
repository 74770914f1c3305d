"""`streamtrain init`: looks at a collection and writes a settings file for it. All but `collection.py`, which reads
MongoDB, and `command.py`, which writes files, is pure."""
