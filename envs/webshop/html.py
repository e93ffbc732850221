"""The pages as HTML: observation mode `html`, in a short form that reads like the original's pages.

Everything that is text, link, button or radio button there is so here, with the same classes and addresses; styles,
scripts and pictures are left out. Written from the products, not from the text pages, so that each checks the other.
Knows nothing of goals beyond the instruction.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable

from envs.webshop.address import address, detail_address, done_address, item_address, results_address, search_address
from envs.webshop.catalog import Product
from envs.webshop.pages import Detail
from envs.webshop.session import Session, View


def render_html(session: Session) -> str:
    """The open page as one HTML document. WebShop's rules for text nodes read its `text` observation out of it."""
    body = "\n".join(_BODIES[session.view](session))
    return f"<!DOCTYPE html>\n<html>\n<head>\n<title>WebShop</title>\n</head>\n<body>\n{body}\n</body>\n</html>\n"


def _search(session: Session) -> Iterable[str]:
    yield "<h3>WebShop</h3>"
    yield f'<div id="instruction-text">\n<h4>Instruction: <br>{_text(session.goal.instruction)}</h4>\n</div>'
    yield f'<form role="search" action="{_text(search_address(session))}" method="post">'
    yield '<input type="text" id="search_input" name="search_query" placeholder="Search...">'
    yield '<button type="submit" class="btn btn-success">Search</button>\n</form>'


def _results(session: Session) -> Iterable[str]:
    yield from _header(session)
    yield f"<h3>Page {session.number} (Total results: {session.num_hits})</h3>"
    if session.number > 1:
        yield _button("< Prev", results_address(session, session.number - 1))
    yield _button("Next >", results_address(session, session.number + 1))
    for product in session.shown:
        yield '<div class="list-group-item">'
        target = _text(item_address(session, product.asin, {}))
        yield f'<h4><a class="product-link" href="{target}">{_text(product.asin)}</a></h4>'
        yield f'<h4 class="product-title">{_text(product.title)}</h4>'
        yield f'<h5 class="product-price">{_text(product.price_text)}</h5>'
        for text in (product.category, product.query, product.product_category):
            yield f"<!-- {_text(text).replace('-', '&#45;')} -->"
        yield "</div>"


def _item(session: Session) -> Iterable[str]:
    product = _product(session)
    yield from _header(session)
    yield _button("< Prev", results_address(session, session.number))
    for group in product.options:
        yield f'<h4>{_text(group.name)}</h4>\n<div class="radio-toolbar">'
        for number, value in enumerate(group.values):
            yield _radio(session, group.name, number, value)
        yield "</div>"
    yield f"<h2>{_text(product.title)}</h2>"
    yield f"<h4>Price: {_text(product.price_text)}</h4>\n<h4>Rating: N.A.</h4>"
    for detail in Detail:
        if session.shows_attributes or detail is not Detail.ATTRIBUTES:
            yield _button(detail.value, detail_address(session, product.asin, detail))
    yield _button("Buy Now", done_address(session, product.asin))


def _detail(session: Session) -> Iterable[str]:
    product = _product(session)
    yield from _header(session)
    yield _button("< Prev", item_address(session, product.asin, session.options))
    if session.detail is Detail.DESCRIPTION:
        yield f'<p class="product-info">{_text(product.description)}</p>'
    elif session.detail is Detail.FEATURES:
        yield "<ul>"
        yield from (f'<li>\n<p class="product-info"> {_text(bullet)}</p>\n</li>' for bullet in product.bullets)
        yield "</ul>"
    elif session.detail is Detail.ATTRIBUTES:
        texts = (*product.attributes, product.category, product.query, product.product_category)
        yield from (f'<h5 class="attribute">{_text(text)}</h5>' for text in texts)


def _done(session: Session) -> Iterable[str]:
    # This page has no texts of the catalogue but the asin and the options, so it is laid out from its own segments.
    texts = [_text(segment.text) for segment in session.page.segments]
    thanks, label, code, hint = texts[:4]
    reward = texts.index("Reward")
    yield f'<div id="thankyou">\n<h1>{thanks}</h1>'
    yield f"<p>{label}<pre>{code}</pre>{hint}</p>\n</div>"
    yield '<div id="stats" style="display:none">'
    yield from (f"<p>{text}</p>" for text in texts[4:reward])
    yield "</div>"
    yield from (f'<p class="reward">{text}</p>' for text in texts[reward:])


def _header(session: Session) -> Iterable[str]:
    yield f'<div id="instruction-text">\n<h4>Instruction:<br>{_text(session.goal.instruction)}</h4>\n</div>'
    yield _button("Back to Search", search_address(session))


def _button(label: str, target: str) -> str:
    button = f'<button type="submit" class="btn btn-primary">{_text(label)}</button>'
    return f'<form method="get" action="{_text(target)}">\n{button}\n</form>'


def _radio(session: Session, group: str, number: int, value: str) -> str:
    target = item_address(session, _product(session).asin, {**session.options, group: value})
    name = _text(f"radio_{group}{number}")
    checked = " checked" if session.options.get(group) == value else ""
    return (
        f'<input type="radio" id="{name}" name="{_text(group)}" value="{_text(value)}" '
        f'data-url="{_text(target)}"{checked}>\n<label for="{name}">{_text(value)}</label>'
    )


def _product(session: Session) -> Product:
    assert session.product is not None, address(session)  # the pages that ask for it all have one
    return session.product


_text = html.escape

_BODIES: dict[View, Callable[[Session], Iterable[str]]] = {
    View.SEARCH: _search,
    View.RESULTS: _results,
    View.ITEM: _item,
    View.DETAIL: _detail,
    View.DONE: _done,
}
