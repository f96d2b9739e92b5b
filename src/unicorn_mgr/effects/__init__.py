"""Events and actions: what the cores are told, and what they command.

Events are facts, named in the past tense; actions are commands, named in the imperative.
A decision of the coordinator is an event, too: it is journaled before anything leaves the
process, and a replay records it instead of deriving it again.
"""
