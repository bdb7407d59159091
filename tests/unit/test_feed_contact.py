"""Whether a feed is up to date, by its own clock."""

from pyoco_server.jetstream.feed import CONTACT_SEC, FeedContact


class Life:
    def __init__(self) -> None:
        self.now = 100.0
        self.is_connected = True
        self.contact = FeedContact(lambda: self.is_connected, lambda: self.now)


def test_a_feed_that_was_never_read_is_not_stale_but_unread() -> None:
    assert Life().contact.stale_sec == 0


def test_a_feed_is_up_to_date_between_two_signs() -> None:
    life = Life()
    life.contact.confirm()
    life.now += CONTACT_SEC
    assert life.contact.stale_sec == 0
    life.contact.confirm()
    assert life.contact.missed_sec == 0


def test_a_lost_connection_makes_it_stale_at_once() -> None:
    """D30"""
    life = Life()
    life.contact.confirm()
    life.is_connected = False
    assert life.contact.stale_sec > 0
    life.now += 30
    assert life.contact.stale_sec == 30


def test_a_connection_that_is_back_is_not_enough() -> None:
    """D30: what happened meanwhile has to be read first."""
    life = Life()
    life.contact.confirm()
    life.now += 1
    life.contact.interrupt()
    assert life.contact.stale_sec == 1
    life.contact.confirm()
    assert (life.contact.stale_sec, life.contact.missed_sec) == (0, 1)


def test_silence_on_a_healthy_looking_connection_makes_it_stale() -> None:
    """D30"""
    life = Life()
    life.contact.confirm()
    life.now += CONTACT_SEC + 1
    assert life.contact.stale_sec == CONTACT_SEC + 1
    life.contact.confirm()
    assert life.contact.missed_sec == CONTACT_SEC + 1
