"""Users and permissions: who may send which request to a server.

`gate` stands in front of dispatch and decides about every request, by the users and ACLs of `store` and the
table of `rights`. `model` holds the values and the decision, `administration` the requests that change users
and ACLs, `audit` the log of what was refused and changed. Everything belongs to the server's loop thread,
except the thread that writes the audit log. Start with `gate`.
"""
