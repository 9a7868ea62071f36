"""Several machines as one, on Ray: the recipes on each kind of them side by side, and single runs over several.

Ray says which nodes there are, starts a supervisor on each (`node`), and carries messages to it, strings of JSON; it
carries no gradients. The room is imported only where a cluster is asked for, and nothing else imports Ray.
"""
