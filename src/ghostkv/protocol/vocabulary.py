"""The English words that extraction goes by. Lists only: membership is asked, their order never shows."""

from __future__ import annotations


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Capitalised at the start of a sentence without being a name. Lower case here.
STARTERS = _words(
    "the a an this that these those it its he she they we you i his her their our your my one two three four "
    "five six seven eight nine ten in on at by for from to of with without within into under over after before "
    "during since until when while where what who why how which if unless although though because as and or but "
    "nor so yet then there here now today yesterday tomorrow later soon once again also still only just even "
    "both each every all some any many most much more less few several no not never nobody nothing none everyone "
    "everything someone between behind beside beyond below above across along around near inside outside through "
    "despite suppose assuming given please let yes ok hi hello dear thanks thank sorry note see call set use add "
    "run take keep make do does did is are was were be has have had will would could should can may might must "
    "shall whether however therefore meanwhile finally first second third next last another other same such nor "
    "either neither half per via is check open close click go get put give send ask tell book write read edit "
    "divide pour mix bake stir heat simmer preheat season return returns deliver restart restarting replace "
    "update upgrade install select enter choose turn try wait stop start move change rename remove delete create "
    "build ensure remember effective correction warning error info debug warn fatal trace status name version "
    "type date time page section figure table chapter example question answer total average mean median maximum "
    "minimum nobody water light sound rain snow wind fire work people men women children edit serves source "
    "owner host port region image seat booking ticket party register signed memory cpu gpu traffic load coverage "
    "backup checksum deploy rollback incident connection kernel job node notices invoices repairs liability "
    "temperatures response passport flight check error notice contract data code docs default boarding adding "
    "fixed based according instead perhaps maybe indeed well ok okay oh ah no"
)
# All capitals without being a name.
SHOUTED = _words(
    "ERROR WARN WARNING INFO DEBUG FATAL TRACE NOTE TODO OK AM PM GET POST PUT DELETE PATCH HEAD I A YES NO AI "
    "CEO CTO CFO COO"
)
TITLES = _words(
    "Mr Mrs Ms Dr Prof Captain Capt Commander Lieutenant Sergeant Colonel General Major Admiral Professor Doctor "
    "Sir Lady Lord King Queen Prince Princess Duke Duchess Sister Brother Father Mother Inspector Detective "
    "President Minister Senator Judge Chief Señor Señora Uncle Aunt Old"
)
PLACES = _words(
    "Module Station Base Bay Street Lane Road Avenue Square Plaza Calle Lake Harbor Harbour Port City Town "
    "Village Room Building Floor Hangar Dock Gate Platform Warehouse Island Islands Mount Mountain Mountains "
    "River Valley Bridge Tower Rock House Keep Castle Hotel Pension Gasthof Airport Park Forest Sea Ocean Bay "
    "Desert Colony Crater Deck Hall Hill Garden Rue Via Canal Coast Cape Glacier"
)
THINGS = PLACES | _words(
    "Corp Inc Ltd GmbH LLC AG Institute University Company Project Telescope System Systems Bank Team"
)
PLACED = _words("in inside near outside across toward towards at around reached left into")
SPOKE = _words(
    "said asked replied whispered shouted smiled nodded walked ran looked found carried opened closed turned "
    "stood sat lives lived works worked kept wrote told knew thought felt took went came lit left won held "
    "sealed checked changed counted waited awakens woke arrived knows sees says asks is was has had reported "
    "noticed watched heard saw"
)
MONTHS = (
    "January|February|March|April|May|June|July|August|September|October|November|December|"
    "Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sept|Sep|Oct|Nov|Dec"
)
WEEKDAYS = "(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)days?"

# A number after these is a code, not a count.
ID_CUES = (
    "order|invoice|ticket|case|booking|reference|ref|serial|job|build|bus|account|customer|article|contract|docket|"
    "policy|parcel|tracking|licence|license|request|issue|task|batch|lot|model|part|PIN|code"
)
ID_NOUNS = _words("code pin id number key serial reference ticket order invoice booking account passport register seat")

# What an attribute is called where it has, at one time, one value.
ATTRIBUTES = _words(
    "temperature pressure price cost fee rent salary budget deposit amount rate speed velocity height altitude "
    "depth weight mass length width radius diameter age distance volume capacity level humidity voltage current "
    "power energy frequency wavelength concentration dose dosage ph efficiency size limit threshold timeout "
    "count number quota population total balance score rank priority severity status state version release "
    "deadline date time day term duration period captain commander capital president director manager lead "
    "leader owner author editor maintainer guide technician driver pilot teacher chair chairman ceo secretary "
    "mayor king queen contact name title code password pin key id serial reference address email e-mail phone "
    "url link host port gateway path branch endpoint database model engine backend region zone colour color gate "
    "room seat platform hotel location position destination allowance warranty uptime half-life battery charge "
    "value estimate quantity stock supply dimension departure arrival closing expiry class type kind mode format "
    "default setting pid load usage use heading course"
)
# Said after a measure: "3 m high".
MEASURED = {
    "high": "height", "tall": "height", "long": "length", "wide": "width", "deep": "depth", "thick": "thickness",
    "old": "age", "away": "distance", "heavy": "mass",
}  # fmt: skip
# Dimensions in which a thing is, rather than which it merely does or covers.
STATES = _words("temperature pressure percentage concentration voltage level frequency")

COPULAS = _words("is are was were be been being remains remain stays stay equals reads")
SCHEDULES = _words("runs opens closes leaves departs starts begins ends arrives lives works")
STATIVES = (
    COPULAS
    | SCHEDULES
    | _words("has have had weighs costs measures takes lasts stands sits holds totals numbered amounts")
)
MOVES = _words(
    "rose risen rises fell fallen falls dropped drops climbed climbs grew grown increased increases decreased "
    "decreases reduced reduces lowered lowers raised raises changed changes updated updates revised revises "
    "corrected corrects amended switched moved relocated renamed replaced became becomes become extended "
    "shortened postponed upgraded downgraded swapped promoted went set reset adjusted cut doubled sank sunk slid "
    "warmed cooled transferred rescheduled"
)
BECOMES = _words("became becomes become renamed")  # the new value follows at once
NOW = _words("now currently actually today meanwhile correction")
FILLERS = NOW | _words(
    "to at about around approximately roughly nearly almost exactly only just still up down by order the a an has have "
    "had "
    "been be is are was were from into of set as for with and or in on level estimated again since then called named "
    'over under least most not never no longer ` " “ ‘ than already well therefore down below above'
)
DETERMINERS = _words("the its his her their our your my a an this that these those")
PREPOSITIONS = _words("of in for at from inside on aboard about near to with between by")
PRONOUNS = _words("it he she they")
# One of these stands in every sentence that supposes, plans or asks; and in every one that denies. See `moods`.
DOUBTS = _words(
    "starting must if unless whether suppose supposing assuming imagine case provided would could might may should "
    "shall will won let going plan plans planned planning intend intends intended propose proposed proposes "
    "proposal expect expects expected hope hopes hoped want wants wanted wish wishes wished claim claims claimed "
    "believe believed rumor rumors rumour rumours pretend pretended as until order try trying request requests "
    "requested please"
)
DENIALS = _words(
    "not never neither nor without instead rather nobody no cannot nothing t formerly previously originally used "
    "once earlier at had ex"
)
