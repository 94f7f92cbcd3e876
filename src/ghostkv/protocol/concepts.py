"""Hand-written word tables of recall: words that ask for the same attribute, and what kind of answer a question wants.

Small on purpose: the attributes that people ask documents about. A word may belong to several concepts. This is weak
evidence beside the words themselves; `recall` weighs it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

from ghostkv.protocol.facts import Kind
from ghostkv.protocol.stems import stem

_TABLE = """
temperature: temperature warm warmth cold hot heat cool chilly freezing degree degrees thermometer celsius fahrenheit
    °
pressure: pressure barometer pascal kpa hpa bar psi atmosphere atmospheric
humidity: humidity humid damp moist moisture dry wet
weather: weather climate rain rainfall precipitation snow storm wind forecast shower
cost: cost price fee charge expense pay paid payment spend bill worth money tariff rate budget cheap expensive dollar
    euro pound salary $ € £ ¥
income: salary wage income earn earnings pay paid revenue profit turnover
debt: debt owe loan mortgage credit borrow lend
limit: limit maximum minimum cap ceiling allowed allow permitted most least threshold bound
leader: leader lead leads led boss captain commander command head chief director direct manager manage president chair
    chairman chairwoman governor govern ruler rule mayor master principal run runs charge supervise supervisor oversee
    superintendent
founder: founder founded found establish established start begin create created built inventor invent originator
maker: make maker made manufacture manufacturer produce producer product build built builder construct fabricate
    assemble vendor
designer: design designer architect architecture plan planner draw drew engineer
author: author write writer wrote written pen composer compose poet novelist editor
owner: own owner owned belong belongs possess proprietor landlord holder property
worker: work worker staff employee employ employed crew personnel team people member labour job
job: job occupation profession work post position role career employed trade living
teacher: teach teacher taught instructor instruct lesson class professor tutor coach train school lecturer
doctor: doctor physician surgeon medic nurse medical clinic hospital
patient: patient sick ill illness disease ailment suffer symptom
family: wife husband spouse married marry wedding partner
child: child children son daughter kid offspring
parent: parent mother father mum dad
relative: brother sister sibling cousin aunt uncle relative family
friend: friend ally companion partner colleague
begin: begin began start launch open opened opening commence inaugurate first introduce
end: end finish close closed closing stop complete conclude expire expiry cease terminate over deadline due
arrive: arrive arrival come came reach land landed dock docked return
leave: leave left depart departure exit sail sailed go went
schedule: schedule timetable hour hours time daily weekly meet meeting appointment
open: open opening hours visit
phone: phone telephone number call dial contact reach line mobile extension
mail: mail email letter post message write inbox
password: password passcode passphrase code key pin secret combination unlock login credential
identifier: identifier id number serial code tag label registration reference badge licence license plate designation
name: name named call called title known nickname alias entitled
version: version release build revision edition update firmware software
address: address live living reside residence home house street dwell
place: place located location locate lie lies situated site where stand stands position spot area region venue found
    sit sits
city: city town village capital municipality
country: country nation state land homeland citizen citizenship nationality
origin: origin come from source native originate import export supply supplier provide provider
birth: born birth birthday birthplace native
death: died die death dead killed passed buried perish
age: age old older young years
date: date day month year january february march april june july august september october november december monday
    tuesday wednesday thursday friday saturday sunday
time: time hour clock minute noon midnight morning evening night am pm
duration: long last lasted duration take took takes hour hours minute minutes week weeks month months year years
    second seconds day days length
length: long length metre metres meter meters measure measures foot feet inch kilometre mile
height: tall high height altitude elevation above rise rises
depth: deep depth bottom
width: wide width broad breadth
size: big large small size area extent volume capacity square
weight: heavy weigh weighs weight mass light kilogram kilograms kg tonne ton gram pound load
distance: far distance away near km kilometre mile miles
speed: fast speed quick velocity slow pace mph knots rate
count: many count total amount quantity sum
population: population people inhabitants residents live citizens
capacity: capacity hold holds contain contains store storage stored seat seats fit fits room accommodate volume litre
    litres maximum
power: power energy electricity electric watt watts kw kilowatt megawatt mw voltage volt battery charge consume
    generator supply
fuel: fuel petrol gasoline diesel gas oil burn tank
fire: fire burn burned burnt blaze flame destroy destroyed
water: water river stream lake sea ocean
colour: colour color paint painted red blue green yellow black white grey orange purple brown
material: material made metal wood wooden stone steel iron copper brass glass plastic consist
food: food eat ate meal dinner lunch breakfast dish diet cook menu feed fed serve served
drink: drink drank coffee tea beverage wine beer
animal: animal pet dog cat horse bird
vehicle: vehicle car truck lorry van bus transport drive driver
ship: ship boat vessel ferry craft
train: train rail railway track locomotive
language: language speak speaks spoken tongue talk
religion: religion faith church believe worship
music: music song sing singer choir band orchestra instrument play plays concert
sport: sport team play player club league match game
book: book volume library read reader
school: school university college study studied student graduate educated degree
prize: prize award medal win won winner honour trophy
rule: rule law regulation policy require required requirement must forbidden prohibited ban banned
problem: problem fault error failure fail failed defect break broken broke bug cause reason
repair: repair fix fixed mend maintain maintenance service inspect inspection check
purpose: purpose use used function serve serves aim goal intended
result: result outcome find findings discover discovered discovery conclusion
change: change changed replace replaced increase decrease raise raised lower lowered rise rose fall fell
room: room chamber hall office floor door
store: store keep kept storage hidden hide stash warehouse
send: send sent ship shipped deliver delivery dispatch
buy: buy bought purchase acquire acquired sell sold sale
sort: group class category type kind
"""

_QUESTIONS = (
    (r"\bwho(?:m|se)?\b|\bwhich (?:person|man|woman)\b|\bwhat\b.{0,20}\bname\b", (Kind.NAME,), ()),
    (r"\bwhen\b|\b(?:what|which) (?:date|day|month|year|week)\b|\bsince when\b", (Kind.DATE, Kind.TIME), ("date",)),
    (r"\bwhen\b|\b(?:what|which) (?:time|hour)\b", (Kind.TIME,), ("time",)),
    (
        r"\bwhere\b|\b(?:what|which) (?:place|city|town|country|room|location|site|street|region)\b",
        (Kind.PLACE,),
        ("place",),
    ),
    (
        r"\bhow (?:much|many|long|far|old|tall|high|heavy|hot|cold|warm|deep|wide|fast|big|large|often|strong)\b"
        r"|\bhow \w+ (?:is|are|was|were)\b|\bnumber of\b|\b(?:percentage|temperature|amount|price|cost)\b",
        (Kind.QUANTITY,),
        (),
    ),
    (
        r"\b(?:what|which)\b.{0,24}\b(?:number|code|id|identifier|serial|version|key|password|pin|registration|tag)\b",
        (Kind.IDENTIFIER,),
        (),
    ),
    (r"\burl\b|\blink\b|\bweb ?site\b|\bweb ?page\b|\bhomepage\b", (Kind.URL,), ()),
    (r"\b(?:what|which) (?:function|method|class|file|path|command|variable|module)\b", (Kind.CODE,), ()),
    (r"\b(?:exact words|motto|slogan|quote)\b|\bwhat did\b.{0,40}\bsay\b", (Kind.QUOTE,), ()),
)
_ANSWERS = tuple((re.compile(pattern), kinds, hints) for pattern, kinds, hints in _QUESTIONS)


def _concepts() -> Mapping[str, tuple[str, ...]]:
    table: dict[str, tuple[str, ...]] = {}
    for line in re.sub(r"\n +", " ", _TABLE).strip().splitlines():
        concept, _, words = line.partition(": ")
        for key in dict.fromkeys(map(stem, words.split())):
            table[key] = (*table.get(key, ()), concept)
    return MappingProxyType(table)


_CONCEPTS = _concepts()


def concepts_of(word: str) -> tuple[str, ...]:
    """The concepts of a case-folded word, in the table's order; mostly none or one."""
    return _CONCEPTS.get(stem(word), ())


def wanted(question: str) -> tuple[tuple[Kind, ...], tuple[str, ...]]:
    """The kinds of fact that `question` asks for, and concepts that its question words stand for; in fixed order."""
    folded = question.casefold()
    matches = [(kinds, hints) for pattern, kinds, hints in _ANSWERS if pattern.search(folded)]
    kinds = dict.fromkeys(kind for found, _ in matches for kind in found)
    return tuple(kinds), tuple(dict.fromkeys(hint for _, found in matches for hint in found))
