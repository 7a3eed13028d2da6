"""The examples do what they say, and the README shows them as they are."""
