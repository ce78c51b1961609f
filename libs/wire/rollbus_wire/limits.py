"""Every limit on what may arrive, in one place. docs/protocol.md, "Limits", says why and what happens beyond.

A limit is checked before what it bounds is allocated. Sizes in bytes unless their name says otherwise.
"""

# --- one message

#: A frame above this ends its connection before it is received whole (ZMQ_MAXMSGSIZE).
MAX_FRAME_BYTES = 1 << 31
#: The header, and every frame on planes that carry no large arrays (registry, requests for weights).
MAX_HEADER_BYTES = 4 << 20
MAX_FRAMES = 1024
#: Messages that are sent as one transmission.
MAX_TOGETHER = 64
MAX_ARRAY_BYTES = 1 << 31
MAX_DIMENSIONS = 8
#: Entries of one list or map.
MAX_CONTAINER_LENGTH = 1 << 16
#: Lists and maps inside each other.
MAX_DEPTH = 32
#: Values, keys and containers of a header together, each further `TEXT_ELEMENT` bytes of a text as one more:
#: sent by who dialled in, and sent by who was dialled.
MAX_ELEMENTS_ASKED, MAX_ELEMENTS, TEXT_ELEMENT = 12_000, 1 << 20, 32
#: Characters of a key, of a field that names something, and of a field that people read.
MAX_KEY, MAX_NAME, MAX_TEXT = 256, 1024, 64 << 10
#: Characters of what is answered, counted and logged about a refused message.
MAX_REASON = 1024

# --- one peer

#: Messages of one connection that wait to be read on the side that was dialled; more stay with their sender.
MAX_WAITING_ASKED = 1024
#: Refused messages that a peer may send at once, and per second, before it is ignored for so long.
REJECTS_AT_ONCE, REJECTS_PER_S, IGNORED_S = 64, 8.0, 10.0
#: Peers with refused messages that are remembered; who was refused longest ago is forgotten first.
MAX_REJECTED_PEERS = 1024
#: What one turn of a service takes from a link: so many messages at most, and after the first few of them no
#: more than it handles in so many seconds; refused messages that one `recv` passes over.
MESSAGES_PER_TURN, FIRST_OF_TURN, TURN_S, REJECTS_PER_TURN = 256, 8, 0.002, 32
#: A refusal of the same code is logged again after this many seconds, with how often it came meanwhile.
LOG_AGAIN_S = 10.0

# --- one run

#: Processes of one kind, such as actors: a run may replace each several times before the registry, which
#: remembers their names, has `MAX_PEERS` of them.
MAX_PROCESSES = 1024

# --- one environment or request

#: Peers of one hub, members of one registry, senders whose replies are remembered.
MAX_PEERS = 4096
#: Rows of one peer, slice, ticket or request for decisions.
MAX_ROWS = 1 << 16
#: Bytes of one row's observation under one key.
MAX_ROW_BYTES = 1 << 26
#: Actions of one decision.
MAX_ACTION_CHUNK = 4096
#: Recurrent state of one row.
MAX_CARRY_BYTES = 1 << 20
