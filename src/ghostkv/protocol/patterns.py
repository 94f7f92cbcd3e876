"""The patterns of exact items, one alternation for each class of character that an item can begin with.

They are ordered so that URLs, code and identifiers mask the digits in them. Every repetition is bounded, or possessive
where it consumes what it matches, so the time is linear in the text.
"""

from __future__ import annotations

import re

from ghostkv.protocol import units
from ghostkv.protocol.vocabulary import ID_CUES, MONTHS, WEEKDAYS

_UPPER = "A-Z" + "".join(chr(c) for c in range(0xC0, 0x530) if chr(c).isupper())
_CAP = rf"[{_UPPER}](?!\w*_)\w{{0,40}}+(?:['’](?!s\b)\w{{1,20}}+|-\w{{1,20}}+){{0,3}}+"
_NAME = (
    rf"(?:(?:Dr|Mrs?|Ms|Prof|Capt|St|Lt|Sgt|[{_UPPER}])\.\s)?{_CAP}"
    rf"(?:\s(?:(?:of(?:\sthe)?|de|del|della|di|da|do|dos|du|van|von|der|den)\s|[{_UPPER}]\.\s"
    rf"|\d{{1,3}}\sde\s)?{_CAP}){{0,5}}"
)
_DIGITS = (
    r"(?:\d{1,3}(?:,\d{3})++(?:\.\d+)?|\d{1,40}+\s\d/\d{1,2}(?!\d)|\d{1,3}/\d{1,3}(?![\d/])"
    r"|\d{1,40}+(?:\.\d{1,40}+)?(?:[eE][+-]?\d{1,3})?)"
)
_AFTER_UNIT = r"(?!\w|-[a-z])"
_DATE_NUMERIC = (
    r"\d{4}-\d{2}-\d{2}(?:[T ]\d{2}:\d{2}(?::\d{2}(?:\.\d{1,9})?)?(?:Z|[+-]\d{2}:?\d{2})?)?"
    r"|\d{1,2}[/.]\d{1,2}[/.]\d{4}"
)
_DATE_WORDS = (
    rf"(?:{WEEKDAYS},?\s)?(?:(?:\d{{1,2}}(?:st|nd|rd|th)?\s(?:of\s)?(?:{MONTHS})\b(?:\.(?=\s\d))?(?:,?\s\d{{4}}\b)?)"
    rf"|(?:{MONTHS})\b(?:\.(?=\s\d))?\s\d{{1,2}}(?:st|nd|rd|th)?\b(?!:)(?:,?\s\d{{4}}\b)?|(?:{MONTHS})\s\d{{4}}\b)"
    rf"|{WEEKDAYS}\b|(?:Sol|Day|Week|Year|Stardate)\s\d{{1,6}}\b|Q[1-4]\s\d{{4}}\b"
)
_TLD = "com|org|net|io|dev|edu|gov|de|uk|eu|fr|ch|nl|example|app|ai|co|info|local|internal|test"

_LOWER_CUES = sorted([*ID_CUES.casefold().split("|"), "no", *units.NUMBER_WORD[3:-1].split("|")])

_PATTERNS = {
    "span": r"`(?P<code>[^`\n]{1,200})`",
    "url": r"(?:https?|ftp|ssh|file)://[^\s<>\"“”|]{1,2000}+|www\.[\w.-]{1,200}+(?:/[^\s<>\"“”|]{0,500}+)?"
    r"|(?<![\w.+-])[\w.+-]{1,64}+@[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63}){1,5}+"
    rf"|(?<![\w./@-])(?:[a-z0-9-]{{1,63}}\.){{1,5}}(?:{_TLD})\b(?![\w(]|\.\w|-\w)(?:/[^\s<>\"“”|]{{0,500}}+)?"
    rf"(?::\d+)?",
    "doi": r"\bdoi:\s?10\.\d{4,9}/[^\s)\]>,;]{1,200}+",
    "path": r"(?<![\w/.:])(?:[A-Za-z]:\\[\w.\\ -]{0,200}\.\w{1,8}|[A-Za-z]:\\[\w.\\-]{1,200}|(?:~"
    r"|\.{1,2})?/[\w@.{}*:-]{1,100}+(?:/[\w@.{}*:-]{0,100}+){0,20}"
    r"|[a-z_][\w.-]{0,60}/(?:[\w.-]{1,60}/){0,12}[\w-]{1,60}(?:\.[a-z][\w-]{0,10}){1,3}\b)",
    "address": r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?:/\d{1,2}|:\d{1,5})?(?![\w.]\w)"
    r"|\b(?:[0-9A-Fa-f]{2}:){5}[0-9A-Fa-f]{2}\b",
    "hash": r"\b(?:[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|0x[0-9a-fA-F]{1,64}"
    r"|(?=[0-9a-f]{0,63}[a-f])(?=[0-9a-f]{0,63}\d)[0-9a-f]{7,64})\b(?![.-]\w)",
    "version": r"\b[vV]\d{1,4}(?:\.\d{1,6}){0,4}(?:[-+][A-Za-z0-9.]{1,20})?\b|(?<![\w.])\d{1,4}\.\d{1,4}\.\d{1,6}"
    r"(?:\.\d{1,6})?(?:[-+][A-Za-z0-9.]{1,20})?\b(?!\.\d)"
    r"|(?i:(?<=version )|(?<=release )|(?<=section )|(?<=clause )|(?<=article ))\d{1,4}\.\d{1,4}\b",
    "date": rf"(?<![\w.-])(?:{_DATE_NUMERIC})(?![\w-])|\b(?:{_DATE_WORDS})"
    r"|(?<=\b[Ii]n )(?:1[0-9]|2[01])\d\d\b(?![,.]?\d| ?%)|(?i:(?<=since )|(?<=until )|(?<=from )|(?<=and )|"
    r"(?<=before )|(?<=after )|(?<=by ))(?:1[5-9]|20)\d\d\b(?=[.,;:]?(?:\s|$)(?![a-z]+s\b))"
    rf"|(?:(?<=\b[Ii]n )|(?<=\b[Ss]ince )|(?<=\b[Uu]ntil )|(?<=\b[Bb]y ))(?:{MONTHS})\b",
    "time": r"(?<![\w:.,])(?:[01]?\d|2[0-3]):[0-5]\d(?::[0-5]\d(?:\.\d{1,6})?)?(?:\s?(?:[ap]m|[ap]\.m\.|AM|PM)"
    r"(?!\w))?(?:\s(?:UTC|GMT|CET|CEST|EST|EDT|PST|PDT|BST))?(?![\w:])"
    r"|(?<![\w:.,])(?:1[0-2]|0?[1-9])\s?(?:[ap]m|[ap]\.m\.|AM|PM)(?!\w)",
    "phone": r"(?<![\w.])\+\d{1,3}(?:[ -]\(?\d{1,5}\)?){2,5}(?!\w)|\b\d{3}-\d{4}\b|\b\d{3}-\d{3}-\d{4}\b",
    "cued": rf"(?i:\b(?:{ID_CUES})\s(?:(?:no\.?|number|id|reference|code)\s)?)#?(?P<cued_value>"
    rf"(?=[\w/-]{{0,30}}\d)[A-Z0-9][A-Z0-9/-]{{1,30}}+)(?![\w.,:]\w|\s?%)"
    r"|\b[Nn]o\.\s(?P<numbered>(?=[\w/-]{0,30}\d)[A-Z0-9][A-Z0-9/-]{0,30}+)|(?<!\w)#\d{2,12}\b",
    "standard": r"\b(?:RFC|ISO|IEC|DIN|EN|CVE|IEEE|PEP|ANSI)[ -]\d{1,6}(?:-\d{1,8}){0,2}\b|\bHR[AB]\s\d{3,7}"
    r"(?:\s[A-Z]\b)?",
    "flag": r"(?<![\w-])--[a-z][\w-]{1,40}",
    "key": r"\b(?=\w{0,80}[a-z_]\d)(?=\w{0,80}[A-Z])[a-z]{2,12}_(?:[a-z0-9]{1,12}_)?\w{6,64}\b",
    "symbol": r"(?<![\w.])(?:[A-Za-z_]\w{0,60}\.){0,5}[A-Za-z_]\w{0,60}\([\w, =.]{0,40}\)"
    r"|(?<![\w.@/-])(?:_{0,2}[a-zA-Z]\w{0,60}\.){0,4}(?:[A-Za-z]{1,40}[a-z0-9]{0,40}_[a-zA-Z0-9_]{1,60}"
    r"|_[a-z]\w{1,60})\b(?![@/-])"
    rf"|\b[a-z]{{1,30}}[0-9]{{0,4}}[{_UPPER}][a-z0-9]\w{{1,60}}\b"
    rf"|\b[A-Z][a-z0-9]{{2,30}}[A-Z][a-z0-9]{{1,30}}\w{{0,60}}\b(?!['’-])"
    r"|(?<![\w.])[A-Za-z_][\w-]{0,60}\.(?:py|js|ts|rs|go|cpp|hpp|toml|yaml|yml|json|md|txt|csv|html|css|sh|sql"
    r"|docx?|xlsx?|pdf|png|jpe?g|gguf|c|h)\b"
    r"|(?<![\w.@/-])[a-z_]{2,40}\.[a-z_]{2,40}\b(?![.(@-])",
    "tag": rf"(?<![\w.,-])(?:(?=[\w/-]{{0,30}}[0-9])(?:[{_UPPER}]{{1,8}}(?:[-/_]?[0-9{_UPPER}]{{1,20}}){{1,6}}+"
    rf"|[0-9]{{1,12}}(?:-?[A-Z]{{1,6}})(?:-?[0-9A-Z]{{1,12}}){{0,4}})(?![\w])"
    r"|[0-9]{2,12}(?:-[0-9A-Z]{1,12}){1,5}(?!\w|\s?(?:°|%|mm|cm|m|km|s|h|min|kg|g|ml|days|hours|minutes|weeks|years"
    r"|[a-z]{3,}s)\b)"
    r"|[a-z]{2,20}(?:-[a-z]{2,10}){0,3}-\d{1,6}\b(?!-)|[a-z]{1,20}\d{3,}[a-z0-9]{2,}\b)",
    "money": rf"(?<![\w.])(?P<currency>(?:US)?\$|€|£|¥|₹|(?:EUR|USD|GBP|CHF|JPY)\s)\s?(?P<money_number>{_DIGITS})"
    rf"(?:\s?(?P<money_mag>{units.MAGNITUDE})\b)?(?!\w)",
    "quantity": rf"(?<![\w.,])(?P<number>[-−+±]?{_DIGITS})(?P<more>\s?(?:±|\+/-|[-–]|to)\s?{_DIGITS}(?=\s?"
    rf"(?:{units.UNIT})(?!\w)))?"
    rf"(?:\s(?P<magnitude>{units.MAGNITUDE})\b)?(?:[\s-]?(?P<unit>{units.UNIT}){_AFTER_UNIT})(?![A-Z]\w)"
    rf"|(?<![\w.,])(?P<bare>[-−+±]?{_DIGITS})(?:\s?(?P<bare_mag>{units.MAGNITUDE})\b)?(?![\w/]|[.,:-]\d|-[A-Za-z])"
    rf"|(?i:\b(?P<word>{units.NUMBER_WORD})\s(?:(?P<word_mag>{units.MAGNITUDE})\s)?(?:(?P<word_unit>{units.UNIT})"
    rf"(?!\w)|(?=[a-z-]+(?:\s[a-z-]+)?s\b)))",
    "name": rf"(?<![\w'’]){_NAME}(?P<ordinal>\s[A-Z]?\d{{1,4}}(?:\.\d{{1,3}})?[A-Z]?\b(?![.,:/-]\d|\s?%|\s?"
    rf"(?:{units.UNIT})(?!\w)))?",
}
_BY_START = {  # what can begin with a character of this class, in the order in which it is tried
    "upper": "url path hash version date cued standard key symbol tag money quantity name",
    "lower": "url doi path hash version cued key symbol tag quantity",
    "digit": "date address hash version time phone tag url quantity",
    "other": "span path phone cued flag money symbol quantity",
}
SEARCHES = {
    start: re.compile("|".join(f"(?P<{group}>{_PATTERNS[group]})" for group in groups.split()))
    for start, groups in _BY_START.items()
}
"""By the group of `START` that matched; the outer group that matches names what was found."""
START = re.compile(
    rf"(?<!\w)(?:(?P<upper>[{_UPPER}])|(?P<digit>\d)"
    rf"|(?P<lower>(?=(?:{'|'.join(_LOWER_CUES)})\b|[a-z][^\s.:]{{0,60}}(?:[0-9_@/(A-Z]|[.:][\w/]))[a-z])"
    r"|(?P<other>[`/~$€£¥₹+−±#_]|\.{1,2}/|-[\d-]))"
)
"""Where an item can begin. Most words are plain lower-case ones: of these only a cue or a number word can."""
