"""The address of the open page, as WebShop's site has it. Observation mode `url`, and what `text_rich` marks by.

Knows nothing of page contents. Like the original, it does not escape anything: the parts are put in as they are.
"""

from __future__ import annotations

import json

from envs.webshop.pages import Detail
from envs.webshop.session import Session, View

BASE = "http://127.0.0.1:3000"


def address(session: Session) -> str:
    """Where the session is."""
    if session.view is View.SEARCH:
        return search_address(session)
    if session.view is View.RESULTS:
        return results_address(session, session.number)
    assert session.product is not None  # every other view has one
    asin = session.product.asin
    if session.view is View.ITEM:
        return item_address(session, asin, session.options)
    if session.view is View.DETAIL:
        assert session.detail is not None
        return detail_address(session, asin, session.detail)
    return done_address(session, asin)


def search_address(session: Session) -> str:
    return f"{BASE}/{session.session_id}"


def results_address(session: Session, number: int) -> str:
    return f"{BASE}/search_results/{session.session_id}/{_keywords(session)}/{number}"


def item_address(session: Session, asin: str, options: dict[str, str]) -> str:
    """Options stand as JSON in ASCII, in the order of choice."""
    place = f"{session.session_id}/{asin}/{_keywords(session)}/{session.number}"
    return f"{BASE}/item_page/{place}/{json.dumps(options)}"


def detail_address(session: Session, asin: str, detail: Detail) -> str:
    """Options stand as Python writes a dictionary, so that a value is never in double quotes here."""
    place = f"{session.session_id}/{asin}/{_keywords(session)}/{session.number}"
    return f"{BASE}/item_sub_page/{place}/{detail.value}/{session.options}"


def done_address(session: Session, asin: str) -> str:
    return f"{BASE}/done/{session.session_id}/{asin}/{session.options}"


def _keywords(session: Session) -> str:
    return (session.keywords or "").replace(" ", "+")
