"""Questions made from a grammar, in the six classes of TREC: for where the real ones are not available.

They are used only on request. All classes share their openings (*What is the …* may ask for anything), so that the
first words of a question do not reveal its class.
"""

from __future__ import annotations

import random
import re
from typing import NamedTuple

from rocmlab.base.errors import RocmlabError

COARSE = ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM")  # the classes of TREC, in the order of their numbers


class Question(NamedTuple):
    """One question with its class."""

    coarse: str  # what kind of answer it wants: one of COARSE
    fine: str  # the kind within, for example `city` in LOC
    text: str


FILLERS = {
    name: tuple(word.replace("_", " ") for word in line.split())
    for name, line in {
        "abbreviation": "NASA CPR HTML DNA GDP NATO UNESCO OPEC AIDS LASER RADAR SCUBA FBI CIA BBC IBM GPS USB PDF RAM"
        " ROM CPU ATM PIN VIP UFO ISBN NAFTA SAT MRI",
        "long": "the_European_Union carbon_dioxide a_cash_machine the_World_Health_Organization a_master_of_science"
        " the_speed_of_sound artificial_intelligence the_United_Nations a_compact_disc random_access_memory"
        " the_post_office a_high_school_diploma the_International_Monetary_Fund liquid_crystal_displays"
        " a_personal_computer the_Olympic_committee an_unidentified_flying_object blood_pressure",
        "animal": "whale spider penguin camel kangaroo salmon falcon tortoise beaver shark owl dolphin bat panda cobra"
        " lobster moose zebra raccoon swan",
        "city": "Lisbon Nairobi Toronto Prague Lima Kyoto Dublin Oslo Cairo Chicago Manila Athens Havana Perth Vienna"
        " Bogota Denver Warsaw Tunis Seattle",
        "country": "Portugal Kenya Canada Peru Japan Ireland Norway Egypt Chile Greece Cuba Australia Austria Poland"
        " Nepal Iceland Morocco Finland Vietnam Mexico",
        "person": "Marie_Curie Leonardo_da_Vinci Amelia_Earhart Isaac_Newton Charles_Darwin Ada_Lovelace Mozart"
        " Cleopatra Alan_Turing Frida_Kahlo Mark_Twain Galileo Joan_of_Arc Captain_Cook Jane_Austen Beethoven",
        "profession": "plumber dentist geologist carpenter violinist lawyer astronaut chemist painter nurse sculptor"
        " librarian surgeon farmer pilot poet",
        "thing": "telephone zipper compass barometer typewriter bicycle microscope piano parachute thermometer"
        " steam_engine light_bulb telescope umbrella violin stapler camera clock toaster elevator",
        "phenomenon": "gravity photosynthesis inflation erosion magnetism radioactivity evaporation lightning"
        " fermentation osmosis tides earthquakes insomnia friction fog rust",
        "topic": "the_Civil_War botany chess the_Moon medicine astronomy architecture the_ocean philosophy cooking"
        " geometry slavery the_railway opera the_French_Revolution trade",
        "sport": "baseball cricket tennis rugby hockey golf volleyball badminton handball polo",
    }.items()
}

TEMPLATES = {
    "ABBR": (
        "exp: What does {abbreviation} stand for ?",
        "exp: What does {abbreviation} stand for in {topic} ?",
        "exp: What is {abbreviation} an abbreviation of ?",
        "exp: What is the meaning of the letters {abbreviation} in {country} ?",
        "exp: Which words do the letters {abbreviation} come from ?",
        "abb: What is the abbreviation of {long} in {topic} ?",
        "abb: How is {long} abbreviated in {country} ?",
        "abb: Name the acronym for {long} in {country} .",
        "abb: In what way is {long} abbreviated in {topic} ?",
    ),
    "DESC": (
        "def: What is {phenomenon} ?",
        "def: What is the meaning of the word {thing} in {topic} ?",
        "desc: What is the difference between a {thing} and a {thing} ?",
        "desc: What does a {profession} do with a {thing} ?",
        "desc: Which effect does {phenomenon} have on a {animal} ?",
        "manner: How does a {thing} work in {country} ?",
        "manner: How is a {thing} made in {city} ?",
        "manner: In what way does {topic} help a {profession} ?",
        "reason: Name the reason why {person} left {city} .",
        "reason: Why does a {animal} fear {phenomenon} ?",
    ),
    "ENTY": (
        "animal: Which animal in {country} eats a {animal} ?",
        "color: What color is a {animal} in {country} ?",
        "color: What is the favorite color of {person} ?",
        "cremat: Name the book about {topic} that {person} wrote .",
        "cremat: Which opera was written in {city} about {topic} ?",
        "currency: What is the currency of {country} ?",
        "food: What does a {animal} eat in {country} ?",
        "instru: Which instrument did {person} play in {city} ?",
        "lang: In what language did {person} write about {topic} ?",
        "substance: How is the material called that a {thing} is made of ?",
    ),
    "HUM": (
        "desc: Who was {person} ?",
        "gr: What company sells a {thing} to every {profession} ?",
        "gr: Which team from {city} won at {sport} ?",
        "gr: In what band did a {profession} from {city} sing ?",
        "ind: Who invented the {thing} in {country} ?",
        "ind: What is the name of the {profession} who discovered {phenomenon} ?",
        "ind: Which {profession} wrote about {topic} in {country} ?",
        "ind: Name the first {profession} to visit {country} .",
        "ind: How is the {profession} called who brought {sport} to {country} ?",
        "title: What does a {profession} from {country} call himself ?",
    ),
    "LOC": (
        "city: What is the capital of {country} ?",
        "city: Which city in {country} is famous for {sport} ?",
        "country: In what country did {person} learn about {topic} ?",
        "country: What country does a {animal} come from ?",
        "mount: Which mountain can be seen from {city} ?",
        "other: What is the name of the river that flows through {city} ?",
        "other: Name the place where the {thing} was invented .",
        "other: Where can one buy a {thing} in {city} ?",
        "other: How is the street called where {person} lived in {city} ?",
        "state: What state is {city} in ?",
    ),
    "NUM": (
        "count: How many people play {sport} in {country} ?",
        "count: What is the population of {city} ?",
        "date: In what year was the {thing} brought to {country} ?",
        "date: Which year saw the first game of {sport} in {city} ?",
        "date: Name the year in which {person} came to {city} .",
        "date: When did {person} visit {country} ?",
        "dist: How far is {city} from {city} ?",
        "money: What does a {thing} cost in {city} ?",
        "period: How long does a {animal} live in {country} ?",
        "weight: What is the average weight of a {animal} ?",
    ),
}


def questions(rows: int, seed: int = 42, test_rows: int = 100) -> tuple[list[Question], list[Question]]:
    """Make generated questions as `train, test`; no text appears twice, and the same seed makes the same.

    Classes are equally likely, and so are the templates of a class.

    Raises:
        RocmlabError: the grammar cannot make that many different questions.
    """
    chance, made = random.Random(seed), dict[str, Question]()
    for _ in range(20 * (rows + test_rows)):
        question = _make(chance)
        made.setdefault(question.text, question)
        if len(made) >= rows + test_rows:
            found = list(made.values())
            return found[:rows], found[rows:]
    raise RocmlabError(
        f"{rows + test_rows:,} different questions cannot be generated",
        f"after {20 * (rows + test_rows):,} tries the grammar gave {len(made):,}",
        "request fewer rows, or use the TREC questions",
    )


def _make(chance: random.Random) -> Question:
    """Make one question: a class, a template, and a word for each gap, each word once."""
    coarse = chance.choice(COARSE)
    fine, _, text = chance.choice(TEMPLATES[coarse]).partition(": ")
    used: set[str] = set()

    def word(gap: re.Match[str]) -> str:
        chosen = chance.choice([filler for filler in FILLERS[gap[1]] if filler not in used])
        used.add(chosen)
        return chosen

    return Question(coarse, fine, re.sub(r"\{(\w+)\}", word, text))
