# SPDX-License-Identifier: Apache-2.0
"""The store of finished answers, and dialogues that are carried on with it."""

from data_preprocessing.dialogues import Ask, Interviewer, Unanswered, open_answers
from prime_ext.generate.backend import Response, Sampling


class Echo:
    """A backend that repeats the question with its seed, in the wrong order."""

    def __init__(self, failing=()):
        self.failing, self.asked = failing, []

    def description(self):
        return {"backend": "server", "model": "m"}

    def check(self, requests):
        pass

    def generate(self, requests):
        for request in reversed(requests):
            question = request.prompt[-1]["content"]
            self.asked.append(question)
            if question in self.failing:
                yield Response(request.key, "", 0, 0, "failed", "gone")
            else:
                yield Response(request.key, f"{question} {request.seed}", 2, 1, "stop")


def patient(name, turns):
    """Asks until it has had its turns; every answer must be its own."""
    heard = []
    for attempt in range(turns):
        ask = Ask([{"role": "user", "content": name}], attempt=attempt)
        (answer,) = yield [ask]
        assert answer.text == f"{name} {ask.seed(5)}"
        heard.append(answer.text)
    return heard


def test_answers_go_to_the_dialogue_that_asked_whatever_the_others_do(tmp_path):
    with open_answers(tmp_path / "answers.jsonl") as store:
        interviewer = Interviewer(Echo(), store, Sampling(), seed=5)
        turns = [3, 0, 1, 5, 2]
        found = interviewer.results([patient(str(number), times) for number, times in enumerate(turns)])
        assert [len(heard) for heard in found] == turns
        assert (interviewer.asked, interviewer.found) == (sum(turns), 0)
        again = Interviewer(Echo(), store, Sampling(), seed=5)
        assert again.results([patient(str(number), times) for number, times in enumerate(turns)]) == found
        assert (again.asked, again.found) == (0, sum(turns))
        # The same question of two rows is asked once.
        backend = Echo()
        twice = Interviewer(backend, store, Sampling(), seed=5).results([patient("a", 1), patient("a", 1)])
        assert twice[0] == twice[1] and backend.asked == ["a"]


def test_a_dialogue_without_an_answer_ends_and_the_others_go_on(tmp_path):
    with open_answers(tmp_path / "answers.jsonl") as store:
        found = Interviewer(Echo(failing={"b"}), store, Sampling(), seed=5).results([patient("a", 2), patient("b", 2)])
        assert len(found[0]) == 2 and found[1] == Unanswered("gone", refused=False)
        # A later run asks for that alone.
        backend = Echo()
        again = Interviewer(backend, store, Sampling(), seed=5).results([patient("a", 2), patient("b", 2)])
        assert again[0] == found[0] and len(again[1]) == 2 and backend.asked == ["b", "b"]
