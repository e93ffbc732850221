"""What all pages have around them: head, top line, and the ways between shop and replay.

Knows nothing of visits or recordings.
"""

from __future__ import annotations

from tools.webshop_play.markup import Child, Markup, element, join


def document(title: str, main: Markup, *, here: str, has_shop: bool, has_replay: bool) -> str:
    """A whole page.

    Args:
        title: of the browser's tab.
        main: the content.
        here: `shop` or `replay`, marked in the top line.
        has_shop: goals can be played by hand.
        has_replay: a recording is open.
    """
    links = [("shop", "/", "Shop")] if has_shop else []
    links += [("replay", "/replay", "Replay")] if has_replay else []
    navigation = element(
        "nav",
        *(element("a", text, href=href, aria_current="page" if key == here else None) for key, href, text in links),
        aria_label="Areas",
    )
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", f"{title} · WebShop"),
        element("link", rel="stylesheet", href="/assets/style.css"),
        element("link", rel="icon", href="data:,"),
        element("script", src="/assets/keys.js", defer=True),
    )
    top = element("header", element("a", "WebShop", class_="brand", href="/" if has_shop else "/replay"), navigation)
    skip = element("a", "Skip to the page", class_="skip", href="#main")
    body = element("body", skip, top, element("main", main, id="main"))
    return f"<!doctype html>\n{element('html', head, body, lang='en')}\n"


def message_page(title: str, sentence: str, *, has_shop: bool, has_replay: bool) -> str:
    """One sentence and the way back: for what does not exist or is over."""
    main = element("section", element("h1", title), element("p", sentence), class_="message")
    return document(title, main, here="", has_shop=has_shop, has_replay=has_replay)


def post_button(action: str, label: str, fields: dict[str, str], **attributes: str | bool | None) -> Markup:
    """A form that is one button."""
    hidden = join(*(element("input", type="hidden", name=name, value=value) for name, value in fields.items()))
    return element("form", hidden, element("button", label, **attributes), method="post", action=action)


def facts(*rows: tuple[str, Child]) -> Markup:
    """Names and what they are."""
    return element("dl", *(join(element("dt", name), element("dd", value)) for name, value in rows), class_="facts")


def pre(text: str, name: str) -> Markup:
    """Text as it is, named for tests and readers; reachable by keyboard because it may scroll."""
    return element("pre", text, data_what=name, tabindex="0")
