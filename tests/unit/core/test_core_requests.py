"""Requests are repeated under their id and answered once, over real links."""

import time

from rollbus_core.requests import Replies, Requests
from rollbus_wire.link import local_pair
from rollbus_wire.messages import Done, ListMembers, Ping
from rollbus_wire.polling import drain
from rollbus_wire.zmq_link import ZmqLink


def test_a_repeated_request_is_handled_once_and_answered_again():
    ours, theirs = local_pair()
    requests, replies = Requests(ours, repeat_s=0.0), Replies(theirs)
    got = []
    requests.ask(ListMembers(), got.append)
    requests.poll()  # overdue at once: sent again under the same id
    first, second = theirs.recv(), theirs.recv()
    assert first.id == second.id
    assert not replies.known(first)
    assert replies.known(second), "the repeat is known, though there is no answer yet"
    replies.answer(first, Done({"n": 1}))
    assert replies.known(second), "now the repeat gets the answer, too"
    busy, others = requests.poll()
    assert busy and not others and got == [Done({"n": 1})]
    assert requests.late == 1, "the second copy of the answer is dropped and counted"


def test_only_what_is_overdue_is_repeated_and_each_time_later():
    ours, theirs = local_pair()
    requests = Requests(ours, repeat_s=0.2)
    first = requests.ask(ListMembers(), lambda _: None)
    time.sleep(0.15)
    second = requests.ask(ListMembers(), lambda _: None)
    time.sleep(0.1)
    requests.poll()
    requests.poll()
    assert [e.id for e in drain(theirs)] == [first, second, first]
    time.sleep(0.25)  # the first one is due 0.4 s after its repetition
    requests.poll()
    assert [e.id for e in drain(theirs)] == [second]


def test_after_a_redial_everything_is_asked_again_at_once():
    ours, theirs = local_pair()
    requests = Requests(ours, repeat_s=60.0)
    asked = [requests.ask(ListMembers(), lambda _: None) for _ in range(2)]
    requests.poll()
    ours.redials += 1
    requests.poll()
    requests.poll()
    assert [e.id for e in drain(theirs)] == asked * 2


def test_an_answer_goes_to_the_connection_that_asked_last(tmp_path):
    """Who dialled anew while its request waited is not answered over the dead connection."""
    server = ZmqLink.bind(f"ipc://{tmp_path}/s")
    old, new = (ZmqLink.connect(f"ipc://{tmp_path}/s", sender="actor-0") for _ in "ab")
    replies = Replies(server)
    try:
        old.send(ListMembers(), id=7)
        first = arrived(server)
        assert not replies.known(first)
        new.send(ListMembers(), id=7)
        repeated = arrived(server)
        assert replies.known(repeated) and repeated.peer != first.peer
        replies.answer(first, Done({"n": 1}))
        answer = arrived(new)
        assert answer.message == Done({"n": 1}) and answer.re == 7
        assert old.recv() is None
    finally:
        for link in (server, old, new):
            link.close()


def arrived(link, wait_s=5.0):
    end = time.monotonic() + wait_s
    while time.monotonic() < end:
        if (envelope := link.recv()) is not None:
            return envelope
        time.sleep(0.001)
    raise AssertionError("nothing came")


def test_what_is_no_reply_is_handed_on():
    ours, theirs = local_pair()
    requests = Requests(ours)
    theirs.send(Ping())
    _, others = requests.poll()
    assert [e.message for e in others] == [Ping()]


def test_a_forgotten_request_is_late():
    ours, theirs = local_pair()
    requests = Requests(ours)
    request = requests.ask(ListMembers(), lambda _: 1 / 0)
    requests.forget(request)
    theirs.send(Done(), re=request)
    requests.poll()
    assert requests.late == 1 and len(requests) == 0


def test_requests_are_repeated_at_once_after_a_redial():
    """What was under way on a dead connection is lost; waiting for its turn would cost seconds."""
    ours, theirs = local_pair()
    requests = Requests(ours, repeat_s=60.0)
    request = requests.ask(ListMembers(), lambda _: None)
    requests.poll()
    assert theirs.recv().id == request and theirs.recv() is None
    ours.redials += 1
    requests.poll()
    requests.poll()
    assert theirs.recv().id == request and theirs.recv() is None
