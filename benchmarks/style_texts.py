"""What `steering.py` learns from and asks for: pairs of texts that differ in one trait, instructions, topics."""

from __future__ import annotations

PAIRS: dict[str, list[tuple[str, str]]] = {
    "casual": [
        (
            "So yeah, the bike's kinda busted, but don't worry, I'll fix it up tomorrow. It's no big deal, really.",
            "The bicycle is damaged; however, it will be repaired tomorrow. The matter is not of great importance.",
        ),
        (
            "Hey guys, that movie was super cool! We're gonna watch it again, 'cause it's just so much fun.",
            "The film was of considerable merit. It will be viewed a second time, as it proved most entertaining.",
        ),
        (
            "Okay, here's the thing: you can't just toss stuff in the oven and hope it's gonna be awesome.",
            "It must be noted that one cannot simply place ingredients in an oven and expect an excellent result.",
        ),
        (
            "I dunno, the city's pretty loud and stuff, but there's tons of cool places and it's never boring.",
            "The city is rather noisy; nevertheless, it offers numerous remarkable sites and is seldom tedious.",
        ),
        (
            "Yeah, the boss is kinda grumpy today, so let's not bug him. He'll chill out after lunch, you'll see.",
            "The director is in poor humour today and should not be disturbed. He will recover after luncheon.",
        ),
        (
            "Man, it's freezing out there! You'd better grab a big ol' coat or you're gonna get sick, seriously.",
            "The temperature is exceedingly low. It is advisable to wear a heavy coat in order to avoid illness.",
        ),
        (
            "Basically, the dog's a total goof. He's always messing around, and we can't stay mad at him, like, ever.",
            "The dog is of a playful disposition. He is frequently disobedient, yet it is impossible to resent him.",
        ),
        (
            "Nah, that phone's way too pricey. I'd just get a cheap one, it's totally fine for texting and stuff.",
            "The telephone in question is excessively expensive. A less costly model is adequate for correspondence.",
        ),
        (
            "We're heading to the beach, wanna come? It's gonna be a blast, and there'll be snacks and everything.",
            "We intend to visit the shore and request the pleasure of your company. Refreshments shall be provided.",
        ),
        (
            "Honestly, math's not that bad once you get the hang of it. You've just gotta stick with it, okay?",
            "Mathematics is not unduly difficult once its principles have been understood. Perseverance is required.",
        ),
        (
            "Wow, grandma's pie is crazy good. I can't stop eating it, and I'm not even sorry, haha.",
            "The pie prepared by the grandmother is of exceptional quality. One finds it difficult to refrain from it.",
        ),
        (
            "Look, the train's late again, what a pain. Let's just hang out and grab a coffee or something.",
            "The train is delayed once more, which is regrettable. Coffee may be taken in the meantime.",
        ),
    ],
    "first person": [
        (
            "I woke before dawn, and I made my tea in the dark. My hands were cold, but I was glad to be alone.",
            "She woke before dawn and made her tea in the dark. Her hands were cold, but she was glad to be alone.",
        ),
        (
            "I built the shelf myself. I cut my finger twice, and I still think it is my best work.",
            "The carpenter built the shelf. He cut his finger twice, and he still thinks it is his best work.",
        ),
        (
            "When I was a child I feared the river. My father taught me to swim, and I never forgot it.",
            "When the girl was a child she feared the river. Her father taught her to swim, and she never forgot it.",
        ),
        (
            "I believe my garden is the best in the street. I water it myself, and I talk to my roses.",
            "The neighbours believe the garden is the best of all. The owner waters it and talks to the roses.",
        ),
        (
            "I have taught for twenty years, and my students still surprise me. I learn from them every day.",
            "The man has taught for twenty years, and his students still surprise him. He learns from them daily.",
        ),
        (
            "I lost my keys on the train, so I called my sister. She laughed at me and I laughed too.",
            "The man lost his keys on the train, so he called his sister. She laughed at him and he laughed too.",
        ),
        (
            "I prefer the mountains. When I climb, my head is clear, and I forget what worried me.",
            "Climbers prefer the mountains. When they climb, their heads are clear, and they forget what worried them.",
        ),
        (
            "My first job was in a bakery. I hated the early hours, but I loved my colleagues and I stayed.",
            "The first job was in a bakery. The boy hated the early hours, but he loved his colleagues and he stayed.",
        ),
        (
            "I wrote the letter three times before I sent it. I told him that I was sorry, and I meant it.",
            "She wrote the letter three times before she sent it. She told him that she was sorry, and meant it.",
        ),
        (
            "I play the violin badly, I admit. My neighbours complain, but I practise, because it makes me happy.",
            "The clerk plays the violin badly. The neighbours complain, but he practises, because it makes him happy.",
        ),
        (
            "I remember my first winter here. I had no coat, and I thought that I would never be warm again.",
            "The sailors remember the first winter there. They had no coats, and thought they would never be warm.",
        ),
        (
            "I cook for my family on Sundays. I use my mother's recipes, and I hum while I work.",
            "The father cooks for the family on Sundays. He uses his mother's recipes, and he hums while he works.",
        ),
    ],
    "excited": [
        (
            "What an incredible day! The sun is out, the band is playing, and everyone is dancing! It is amazing!",
            "It is a quiet day. The sun is out, a band is playing, and some people are dancing. It is pleasant.",
        ),
        (
            "Wow! The rocket is lifting off! Look at those flames! This is absolutely the greatest thing ever!",
            "The rocket is lifting off. There are flames below it. This is a routine launch, and it goes as planned.",
        ),
        (
            "You have to taste this soup! It is so delicious, so rich, so wonderful! I can not believe it!",
            "This soup may be tasted now. It is mild and fairly rich. It was made in the ordinary way.",
        ),
        (
            "We won! We actually won! The whole team is screaming and jumping! Best match of all time!",
            "The team won. The players shook hands and walked slowly to the bus. It was an even match.",
        ),
        (
            "Oh my goodness, a puppy! Look at its tiny ears! It is the cutest thing in the entire world!",
            "There is a puppy in the room. It has small ears. It lies on the rug and sleeps for a while.",
        ),
        (
            "The library is open again! Thousands of new books! I am so thrilled, this is fantastic news!",
            "The library is open again. There are some new books. Readers sit by the windows and turn the pages.",
        ),
        (
            "Guess what! The train goes two hundred miles an hour! It is so fast! Absolutely unbelievable!",
            "The train moves at an even pace. Outside, the fields pass by slowly, and the passengers rest.",
        ),
        (
            "This garden is spectacular! The colours are insane! Every flower is bursting with life! Incredible!",
            "This garden is peaceful. The colours are soft. The flowers move a little in the light wind.",
        ),
        (
            "Snow! It is snowing! Everybody come outside right now! This is going to be the best winter ever!",
            "It is snowing. The flakes fall without a sound, and the street is still. It will be a long winter.",
        ),
        (
            "The experiment worked! It really worked! The whole lab is cheering! What a phenomenal discovery!",
            "The experiment gave a result. It was noted in the record. The members of the lab went home at six.",
        ),
        (
            "Hurry, the show is starting! The lights, the music, the crowd! My heart is racing! It is so thrilling!",
            "The show will start in a while. The lights are low and the music is gentle. People wait in their seats.",
        ),
        (
            "Our new kitchen is unbelievable! So much space! So much light! Cooking here is pure joy!",
            "The new kitchen is finished. There is enough space and some light. One can cook here in peace.",
        ),
    ],
}

INSTRUCTIONS = {
    "casual": "Write it very casually, with slang and contractions, as if you were chatting with a friend.",
    "first person": "Write it in the first person, as a personal account of what I did and felt.",
    # Asked for exclamation marks, SmolLM2 writes none; shown them, it does.
    "excited": 'Write like this: "Wow! The rocket is lifting off! Look at those flames! This is the greatest thing!"',
}
SENTENCES = {
    "casual": "Style: casual, with slang and contractions.",
    "first person": "Style: first person (I, me, my).",
    "excited": "Style: excited, with exclamation marks.",
}

TOPICS = """a morning at the market; how bread is made; a walk in the forest; the history of the bicycle; a
visit to a museum; learning to swim; a long train journey; the life of bees; cooking dinner for
friends; a storm at sea; the first day at a new school; how a bridge is built; a football match;
growing tomatoes; a night in the desert; the moon; an old lighthouse; repairing a clock; a trip to
the zoo; the invention of the telephone; moving to a new city; a concert in the park; the taste of
coffee; a lost dog; climbing a mountain; painting a house; the work of a baker; a rainy Sunday;
visiting grandparents; the sounds of a harbour; a chess tournament; planting a tree; the smell of
books; winter in the north; a broken car; a birthday party; the work of a nurse; fishing at dawn; a
computer that learns; the colours of autumn"""
VALIDATION = """a day at the beach; how paper is made; a mountain village; the work of a farmer; a flight over the
ocean; an old piano; a busy kitchen; learning to drive; the life of ants; a summer evening; a new
neighbour; building a boat"""


def topics(listed: str) -> list[str]:
    return [" ".join(topic.split()) for topic in listed.split(";")]
