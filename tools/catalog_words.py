"""The vocabulary of the embedded catalogue: types, attributes, colours, sizes, brands, sentences.

Words are chosen so that WebShop's fuzzy reward tells them apart: no colour contains another colour's name, no two
values of a pool score above 85 in token_set_ratio, no attribute matches another. `tests/unit/test_catalog_maker.py`
checks it. Knows nothing of products, files or randomness.
"""

from __future__ import annotations

import dataclasses

CONSONANTS = "BDFGHJKLMNPRSTVZ"
VOWELS = "AEIOU"
SYLLABLES: tuple[str, ...] = tuple(consonant + vowel for consonant in CONSONANTS for vowel in VOWELS)
"""80 two-letter symbols; an ASIN is two different ones, so a tokenizer needs 80 tokens for all ASINs."""

COLORS: tuple[str, ...] = (
    "beige",
    "black",
    "blue",
    "brown",
    "coral",
    "gold",
    "gray",
    "green",
    "ivory",
    "navy",
    "olive",
    "orange",
    "pink",
    "purple",
    "red",
    "silver",
    "teal",
    "white",
    "yellow",
)

BRANDS: tuple[str, ...] = (
    "arvello",
    "bexford",
    "corvane",
    "delmora",
    "elvista",
    "fenwick",
    "gravona",
    "hartell",
    "ilmaro",
    "jorvin",
    "kelsona",
    "lumeria",
    "mervale",
    "norvik",
    "orlana",
    "pellham",
    "quintara",
    "rovanto",
    "selmore",
    "tarvend",
)


@dataclasses.dataclass(frozen=True)
class CategoryWords:
    """What the products of one WebShop category are made of."""

    name: str
    """WebShop's coarse category."""
    department: str
    """First level of `product_category`."""
    attributes: tuple[str, ...]
    """Two-word attributes any product of the category may have."""
    types: tuple[tuple[str, tuple[str, ...]], ...]
    """(type = search phrase of the product, the sizes such a product may come in)."""
    price_range: tuple[int, int]
    """Whole dollars, both ends included."""


_CLOTHES = ("small", "medium", "large", "petite", "tall", "plus")
_SHOES = ("5", "6", "7", "8", "9", "11")
_BOTTLES = ("2 ounce", "16 ounce", "mini", "travel", "salon", "refill")
_FOOD = ("6 ounce", "24 ounce", "mini", "family", "bulk")
_BEDS = ("twin", "full", "queen", "king", "crib")
_FURNITURE = ("low", "narrow", "medium", "large", "corner")
_GADGETS = ("mini", "compact", "medium", "large", "jumbo")
_CABLES = ("6 feet", "25 feet", "short", "extended")

CATEGORIES: tuple[CategoryWords, ...] = (
    CategoryWords(
        name="fashion",
        department="Clothing, Shoes & Jewelry",
        attributes=(
            "long sleeve",
            "machine wash",
            "quick drying",
            "slim fit",
            "elastic waist",
            "polyester spandex",
            "button closure",
            "high waist",
            "daily wear",
            "rubber sole",
            "memory foam",
            "tummy control",
            "pure cotton",
            "crew neck",
            "wide leg",
            "faux leather",
        ),
        types=(
            ("dresses", _CLOTHES),
            ("shirts", _CLOTHES),
            ("hoodies", _CLOTHES),
            ("jackets", _CLOTHES),
            ("jeans", _CLOTHES),
            ("skirts", _CLOTHES),
            ("pajamas", _CLOTHES),
            ("vests", _CLOTHES),
            ("sneakers", _SHOES),
            ("sandals", _SHOES),
            ("boots", _SHOES),
            ("loafers", _SHOES),
        ),
        price_range=(12, 80),
    ),
    CategoryWords(
        name="beauty",
        department="Beauty & Personal Care",
        attributes=(
            "cruelty free",
            "tea tree",
            "argan oil",
            "sensitive skin",
            "hyaluronic acid",
            "dead skin",
            "hair growth",
            "coconut oil",
            "long lasting",
            "plant based",
            "paraben free",
            "dry hair",
            "fine lines",
            "easy apply",
            "vitamin complex",
            "fresh scent",
        ),
        types=(
            ("shampoo", _BOTTLES),
            ("conditioner", _BOTTLES),
            ("lotion", _BOTTLES),
            ("serum", _BOTTLES),
            ("toothpaste", _BOTTLES),
            ("perfume", _BOTTLES),
            ("lipstick", ("mini", "travel", "salon")),
            ("mascara", ("mini", "travel", "salon")),
            ("brushes", ("mini", "travel", "salon")),
            ("wigs", ("short", "shoulder", "waist")),
            ("mirrors", _GADGETS),
            ("towels", _GADGETS),
        ),
        price_range=(5, 50),
    ),
    CategoryWords(
        name="grocery",
        department="Grocery & Gourmet Food",
        attributes=(
            "gluten free",
            "low sodium",
            "sugar added",
            "high protein",
            "dairy products",
            "artificial flavors",
            "freeze dried",
            "keto friendly",
            "non gmo",
            "certified organic",
            "natural ingredients",
            "nut mix",
            "dark roast",
            "individually wrapped",
            "ready eat",
            "high fiber",
        ),
        types=(
            ("cookies", _FOOD),
            ("crackers", _FOOD),
            ("chips", _FOOD),
            ("granola", _FOOD),
            ("coffee", _FOOD),
            ("tea", _FOOD),
            ("sauce", _FOOD),
            ("noodles", _FOOD),
            ("candy", _FOOD),
            ("popcorn", _FOOD),
            ("jerky", _FOOD),
            ("cereal", _FOOD),
        ),
        price_range=(5, 45),
    ),
    CategoryWords(
        name="electronics",
        department="Electronics",
        attributes=(
            "fast charging",
            "noise cancelling",
            "water resistant",
            "easy install",
            "high speed",
            "wireless bluetooth",
            "heavy duty",
            "carrying case",
            "stereo sound",
            "plug play",
            "high definition",
            "low power",
            "motion detection",
            "usb port",
            "tempered glass",
            "hands free",
        ),
        types=(
            ("headphones", _GADGETS),
            ("speakers", _GADGETS),
            ("chargers", _GADGETS),
            ("cables", _CABLES),
            ("cameras", _GADGETS),
            ("projectors", _GADGETS),
            ("tripods", _GADGETS),
            ("keyboards", _GADGETS),
            ("monitors", _GADGETS),
            ("routers", _GADGETS),
            ("antennas", _CABLES),
            ("adapters", _CABLES),
        ),
        price_range=(9, 90),
    ),
    CategoryWords(
        name="garden",
        department="Home & Kitchen",
        attributes=(
            "solid wood",
            "easy clean",
            "space saving",
            "living room",
            "easy assemble",
            "super soft",
            "metal legs",
            "stain resistant",
            "non slip",
            "eco friendly",
            "storage unit",
            "double sided",
            "hand woven",
            "lumbar support",
            "glossy finish",
            "down filling",
        ),
        types=(
            ("sofas", _FURNITURE),
            ("chairs", _FURNITURE),
            ("tables", _FURNITURE),
            ("lamps", _FURNITURE),
            ("bookcases", _FURNITURE),
            ("benches", _FURNITURE),
            ("rugs", _FURNITURE),
            ("curtains", _FURNITURE),
            ("mattresses", _BEDS),
            ("blankets", _BEDS),
            ("sheets", _BEDS),
            ("headboards", _BEDS),
        ),
        price_range=(15, 90),
    ),
)
