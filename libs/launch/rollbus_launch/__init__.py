"""The ``rollbus`` command: composes services into processes and watches over them."""
