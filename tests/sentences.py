"""Judges whether the first sentence of a docstring is a sentence, without a grammar: by lists of words.

A first sentence is a fragment where it has no finite verb:
- of a function: neither a first word such as "Returns" or "Write", nor a verb in the main clause;
- of a class or module: a noun phrase is enough ("A process that ..."), unless it begins with an opener that
  only points elsewhere, such as "Of", "The same" or "What".
A verb that the lists lack is known by what follows it: "Quantises the weights". Some are misjudged;
`python -m tests.prose PATH` shows which are taken for fragments.
"""

from __future__ import annotations

import re
from collections.abc import Sequence


def words(text: str) -> frozenset[str]:
    """Returns the words of a text."""
    return frozenset(text.split())


# No sentence of ours begins with these, whatever follows.
FORBIDDEN = re.compile(
    r"(Of|The same|As|So|What|How|Whether|Which|Those|Such|Whose|Who|Why|That)\b(?!:)", re.IGNORECASE
)
# With these it needs a verb in its main clause, in a class or module, too.
NEEDS_VERB = re.compile(
    r"(Where|When|While|From|By|With|Without|For|In|On|At|To|Until|Over|Under|Between|Along|Before|After|Only"
    r"|Each|Up|Down|Behind|Beside|Beyond|Out|Through|Across|None|Nothing|Twice|Once|Otherwise|Empty)\b(?!-)"
)
FINITE = words(
    "is are was were has have had does do did may might must can cannot could will would shall should"
    " came went took gave saw knew began isn't aren't doesn't don't can't won't needn't wasn't"
)
HELPERS = FINITE | words("to not be been being let lets")  # a bare verb after these is no finite one
SUBORDINATORS = words(
    "that which who whom whose what where when while whether why how if unless until till because since"
    " as than before after once though although whatever whichever whoever wherever whenever however"
)
DETERMINERS = words(
    "a an the all each every no one two three its their his our your this these those any both some"
    " either neither another it them him nothing everything something anybody nobody everybody itself"
    " themselves CODE NUMBER"
)
CLAUSE_OBJECTS = words("what whether how why which whatever")  # "Checks whether ..."
NO_SUBJECTS = words("a an the every no its their his our your")
QUANTITIES = words("many few several most other same next last first")  # a noun follows
PREPOSITIONS = words(
    "of in on at by with without for from to into onto over under between among along through across per"
    " beside besides down up back behind beyond within upon around towards against during and or nor but"
    " than as not only"
)
AFTER_VERBS = words(
    "at by with in for from to into over on through until as when once twice again too anew up down off out"
)
ADVERBS = words(
    "not never always also only again still then now often once twice already no longer alone together"
    " analyse analyze clean decorate erase override process sync transmit visualise visualize quantise"
    " quantize first so too just even most least"
)
# Base forms of verbs that are hardly ever nouns; the third person of each is a verb wherever it stands.
VERBS = words(
    "abort absorb accept accompany accumulate adapt add adjust adopt advance agree align allocate allot"
    " allow answer append apply arise arrive ask assemble assign assume attach attribute average avoid"
    " await base become begin belong bind bound bring broadcast build cache calculate call cancel carry"
    " cast catch change check choose clear clip clone close collect combine come commit compare compile"
    " complete compute concatenate confirm connect constrain consume contain continue contribute convert"
    " copy correct count cover create cut deal decide declare decline decode decrease defer define delete"
    " deliver depend dequeue derive describe destroy detach detect determine die differ disable discard"
    " dispatch distribute divert divide double drain draw drop dump duplicate emit empty enable enclose"
    " encode end enforce enlarge enqueue ensure enter enumerate equal escape estimate evaluate exceed"
    " exchange exclude execute exist exit expand expect explain export expose express extend extract fail"
    " fall feed fetch fill filter find finish fit flatten flush fold follow forbid forget fork format"
    " forward freeze fulfil gain gather generate get give go group grow guarantee guess halve hand handle"
    " hang happen hash hear help hide hold hook identify ignore import improve include increase index"
    " infer inform initialise initialize insert inspect install instantiate interpret invert invoke"
    " iterate join judge keep know label lack launch lay lead learn leave let lie lift limit link list"
    " listen live load locate lock log look lose lower make map mark match matter maximise maximize mean"
    " measure meet merge minimise minimize mirror miss modify move multiply name narrow need normalise"
    " normalize notice notify obey observe occupy offer open order outline overlap overtake overwrite owe"
    " own pack pad parse partition pass patch pay perform permit permute persist pick pin place plan plot"
    " point pop populate post postpone predict prefer prepare prevent price print probe produce profile"
    " project promise propagate propose protect prove provide prune pull push put queue quote raise rank"
    " reach read reads rebuild receive recognise recompute reconstruct record recover recur reduce refer"
    " refine refuse register rehearse reject relate release relist reload remain remember remove rename"
    " render renew reorder repair repeat replace replay reply report represent reproduce request requeue"
    " require reschedule reserve reset reshape resize resolve respect restart restore restrict resume"
    " retrieve retry return reuse reverse revert rewrite round run sample satisfy save say scale scan"
    " scatter schedule search see select send separate serialise serialize serve set settle shard share"
    " shift shorten show shrink shuffle signal simulate sit sketch skip sleep slice solve sort spare speak"
    " specify spend split spread stack stand start stay step stop store strip submit subtract suffice"
    " suggest sum summarise supervise support suspend swap switch synchronise synchronize tabulate tag"
    " take talk teach tell terminate test throw tie tighten time touch trace track train transfer"
    " transform translate travel traverse treat trim try turn undo unfold unpack unshard unwrap update"
    " upload use validate value vary verify violate vote wait walk want warn watch weigh wire work wrap"
    " write yield zero zip"
    " convolve interpolate"
)
# Of these the third person is also a plural noun, and the base form a noun: the next word decides.
AMBIGUOUS = words(
    "advance answer attribute average base bound broadcast cache call cast change check clear clone close"
    " commit complete compute copy correct count cover cut deal decrease double drain draw dump empty end"
    " equal estimate exchange export extract feed filter fit fold fork format forward gain group guess"
    " hand handle hash help hook import increase index judge label launch lead leave lift limit link list"
    " live load lock log look lower map mark match matter mean measure mirror miss move name narrow need"
    " offer open order override own pad partition pass patch pay pick pin place plan plot point post price"
    " print probe process profile project promise prune queue quote rank record release repair repeat"
    " replay reply report request reserve reset reuse reverse round run sample save scale scan schedule"
    " search separate set shard share shift show signal sketch skip slice sort sound spare split spread"
    " stack stage start stay step stop store strip sum support swap switch sync tag test tie time touch"
    " trace track train transfer transform trim try turn update upload use value vote walk wire work yield"
    " zero"
)
# These are plural nouns wherever no object follows, or no verbs at all.
NOUNS = words(
    "batches boundaries buckets bytes costs cuts devices elements fields files gradients groups layers"
    " leaves limits links messages names nanoseconds nodes numbers operations orders parameters parts"
    " plans prices profiles ranks records reports rows samples seconds shapes shards shares stages steps"
    " sums tables tensors times values weights"
)
NO_VERBS = words(
    "perhaps across always towards less unless besides this its whose us as is was has does others theirs"
)
CERTAIN = VERBS - AMBIGUOUS
WORD = re.compile(r"[A-Za-z][\w'-]*|\d[\d.,]*|[,;:]|--|[—–]")


def first_sentence(text: str) -> str:
    """Returns the first sentence of a docstring on one line."""
    paragraph = " ".join(text.strip().split("\n\n")[0].split())
    match = re.search(r"(?<!e\.g)(?<!i\.e)(?<!vs)(?<!al)[.!?](?=[\s)]|$)", paragraph)
    return paragraph[: match.end()] if match else paragraph


def is_fragment(text: str, of_function: bool) -> bool:
    """Returns whether the first sentence of a docstring is no sentence.

    Args:
        text: The docstring.
        of_function: Whether a noun phrase is not enough.
    """
    sentence = first_sentence(text)
    if FORBIDDEN.match(sentence):
        return True
    if not of_function and not NEEDS_VERB.match(sentence):
        return False
    tokens = _tokens(sentence)
    return not (_begins_with_verb(tokens) or _has_main_verb(tokens))


def _tokens(sentence: str) -> list[str]:
    """Returns the words of the first clause; code, quotations and numbers stand as CODE and NUMBER."""
    plain = re.sub(r"`+[^`]*`+(\.\w+|'s)?|\"[^\"]*\"", " CODE ", sentence)
    plain = re.sub(r"\([^)]*\)", " ", plain)
    plain = re.sub(r"\[[^\]]*\]", " CODE ", re.sub(r"^\s*\[[^\]]*\]:", "", plain))
    tokens = ["NUMBER" if token[0].isdigit() else token for token in WORD.findall(plain)]
    stop = next((index for index, token in enumerate(tokens) if token in (":", ";") and index), len(tokens))
    return tokens[:stop]


def _bases(word: str) -> list[str]:
    """Returns what a word is the third person of, such as "pass" for "passes"; none where it is none."""
    if not word.endswith("s") or word.endswith("ss") or word in NO_VERBS:
        return []
    bases = [word[:-1]]
    if word.endswith("es"):
        bases.append(word[:-2])
    if word.endswith("ies"):
        bases.append(word[:-3] + "y")
    return bases


def _begins_with_verb(tokens: Sequence[str]) -> bool:
    """Returns whether the first word is a verb in the third person or an order: "Writes ...", "Write ..."."""
    if not tokens:
        return False
    first = tokens[0].lower().rsplit("-", 1)[-1]  # "Re-raises"
    rest = tokens[1:]
    if first in FINITE:
        return True
    if _bases(first) and first not in NOUNS:
        return _third_person_begins(first, rest)
    plural_follows = bool(rest) and rest[0].islower() and rest[0].endswith("s") and not _is_certain(rest[0])
    if _opens_object(rest[:1]) or (first in NOUNS and (plural_follows or rest[:1] in (["once"], ["twice"]))):
        return any(base in VERBS for base in (first, *_bases(first)))
    if not rest or first not in VERBS or f"{first}s" in NOUNS:
        return first in CERTAIN
    if rest[0] in ("and", "or", ","):
        return _begins_with_verb(rest[1:])
    return rest[0] != "of" and (first in CERTAIN or _is_object(rest[0]))


def _is_certain(word: str) -> bool:
    """Returns whether a word is the third person of a verb, and no plural noun: "holds"."""
    return any(base in CERTAIN for base in _bases(word)) or word in FINITE | PREPOSITIONS | SUBORDINATORS


def _third_person_begins(first: str, rest: Sequence[str]) -> bool:
    """Returns whether a first word such as "Writes" or "Checks" is a verb before the rest."""
    bases = _bases(first)
    if rest and rest[0] == "of":
        return False
    if any(base in CERTAIN for base in bases) or _opens_object(rest[:1]):
        return True
    if not rest:
        return False
    if not any(base in AMBIGUOUS for base in bases):
        return rest[0].islower() and _is_object(rest[0]) and not rest[0].endswith(("ed", "ing"))
    if rest[0] in ("and", "or", ","):
        return _begins_with_verb(rest[1:])
    return rest[0] in AFTER_VERBS or _is_object(rest[0])


def _is_object(word: str) -> bool:
    """Returns whether a word after "Check" or "Checks" can begin what is checked: "if", or a noun."""
    return word == "if" or word not in PREPOSITIONS | SUBORDINATORS | FINITE | {",", ":", ";"}


def _opens_object(tokens: Sequence[str]) -> bool:
    """Returns whether words begin as the object of a verb does: "the step", "`name`", "whether ..."."""
    following = next((token for token in tokens if token.lower() not in ADVERBS), "")
    return following in DETERMINERS or following.lower() in DETERMINERS | CLAUSE_OBJECTS


def _has_main_verb(tokens: Sequence[str]) -> bool:
    """Returns whether the main clause has a finite verb.

    A word such as "that" or "where" opens a clause of its own, whose verb does not count; a comma closes it.
    """
    open_clauses = 0
    below = False  # the last verb was that of a clause: "and keeps" goes on with it
    for index, token in enumerate(tokens):
        if token in (",", "--", "—", "–"):
            goes_on = below and tokens[index + 1 : index + 2] in (["and"], ["or"], ["nor"])
            open_clauses = 1 if goes_on else 0
        elif _opens_clause(tokens, index):
            open_clauses += 1
        elif _is_finite(tokens, index):
            if not open_clauses and not (below and _continues(tokens, index)):
                return True
            open_clauses = max(0, open_clauses - 1)
            below = True
    return False


def _continues(tokens: Sequence[str], index: int) -> bool:
    """Returns whether a verb is joined to the verb before: "takes and keeps", "takes, and then keeps"."""
    before = [token.lower() for token in tokens[max(0, index - 2) : index]]
    return bool(before) and any(word in ("and", "or", "nor", "but") for word in before)


def _opens_clause(tokens: Sequence[str], index: int) -> bool:
    """Returns whether a clause begins here, with a word such as "that" or without: "bytes a stage takes"."""
    word, before = tokens[index].lower(), tokens[index - 1].lower() if index else ""
    if word in SUBORDINATORS:
        return not (word == "as" and before in ("such", "so", "well"))
    if index < 2 or word not in words("a an the each every it they we") or tokens[0].lower() in PREPOSITIONS:
        return False
    known = PREPOSITIONS | SUBORDINATORS | DETERMINERS | FINITE | ADVERBS | VERBS
    return (
        before.isalpha()
        and before not in known
        and not (before.endswith(("ing", "ed")) or _is_finite(tokens, index - 1))
    )


def _is_finite(tokens: Sequence[str], index: int) -> bool:
    """Returns whether the word at `index` is a finite verb, as far as its neighbours tell."""
    word = tokens[index].lower()
    before = tokens[index - 1].lower() if index else ""
    helped = (
        next((t.lower() for t in reversed(tokens[:index]) if t.lower() not in ADVERBS - {"not"}), "")
        in HELPERS
    )
    if word in FINITE:
        return not helped
    if (
        not index
        or helped
        or before in PREPOSITIONS - {"and", "or", "but"}
        or before in QUANTITIES | NO_SUBJECTS
    ):
        return False
    bases = [base for base in _bases(word) if base in VERBS]
    following = tokens[index + 1 : index + 2]
    if word in VERBS:
        return before in ("never", "always") or (word in CERTAIN and before.endswith("s"))
    if any(base in CERTAIN for base in bases):
        return True
    starts_singular = tokens[0].lower() in NO_SUBJECTS and bool(following) and following[0] in AFTER_VERBS
    return bool(bases) and word not in NOUNS and (starts_singular or _opens_object(following))
