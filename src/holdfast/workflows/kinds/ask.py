"""`ask`: a question to a person, or several; every answer is kept as soon as it is given."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast.engine import checkpoint_files as files
from holdfast.engine.context import Context
from holdfast.state.state import State
from holdfast.workflows.errors import StepFailed
from holdfast.workflows.kinds.kind import Kind, Result, Text
from holdfast.workflows.model import Ask, Choice, Question, Step
from holdfast.workflows.scope import Resources


class AskQuestions(Kind):
    """Asks all at once; the run pauses until everything is answered.

    The person who answers may have looked at anything, so that an answer holds only while all of the state is the same.
    """

    takes_state = True

    def __init__(self, step: Step, resources: Resources) -> None:
        super().__init__(step, resources)
        ask = step.ask
        assert ask is not None
        self._ask = ask
        self._prompts = [(question, self._text(question)) for question in _questions(ask)]

    def _text(self, question: Question) -> Text:
        field = f"the prompt of question {question.name!r}" if self._ask.questions else "ask.prompt"
        return self.text(field, question.prompt)

    def run(self, scope: Mapping[str, Any], state: State, ctx: Context) -> Result:
        if self._resources.skip_gates:
            answers = {question.name: self._assumed(question) for question, _ in self._prompts}
        else:
            found = ctx.ask_all(
                {
                    self._name(question, ctx): self._asked(question, prompt, scope)
                    for question, prompt in self._prompts
                }
            )
            answers = {question.name: found[self._name(question, ctx)] for question, _ in self._prompts}
        if self._ask.questions:
            return {"output": answers, "answers": answers}
        (answer,) = answers.values()
        return {"output": answer, "answer": answer}

    def _asked(self, question: Question, prompt: Text, scope: Mapping[str, Any]) -> dict[str, Any]:
        choices = question.choices
        return {
            "prompt": "\n".join([prompt.render(scope), *_described(choices)]),
            "schema": None if question.type == "any" else {"type": question.type},
            "choices": None if choices is None else [choice.value for choice in choices],
            "timeout": self._ask.timeout,
            **({} if question.default is None else {"default": question.default}),
        }

    def _name(self, question: Question, ctx: Context) -> str:
        """Return what people answer to: the step, the item that it is asked for, and the question among several."""
        name = self._step.name if ctx.item_key is None else f"{self._step.name}[{ctx.item_key}]"
        return f"{name}.{question.name}" if self._ask.questions else name

    def _assumed(self, question: Question) -> Any:
        if question.default is not None:
            return question.default
        if question.choices:
            return question.choices[0].value
        which = f"question {question.name!r} of `ask`" if self._ask.questions else "`ask`"
        raise StepFailed(
            f"gates are skipped, and {which} has neither choices nor a default; give it a default"
        )


def _questions(ask: Ask) -> list[Question]:
    if ask.questions:
        return ask.questions
    return [
        Question(
            name="answer",
            prompt=ask.prompt,
            choices=ask.choices,
            type=ask.type,
            default=ask.default,
            multiline=ask.multiline,
        )
    ]


def _described(choices: list[Choice] | None) -> list[str]:
    return [
        f"  {choice.value}: {' - '.join(text for text in (choice.label, choice.description) if text)}"
        for choice in choices or ()
        if choice.label or choice.description
    ]


# `checkpoint`: saving the state into a checkpoint file, and reading one.


class UseCheckpointFile(Kind):
    """Writes or reads a checkpoint file; nothing that a file names is ever imported or run."""

    takes_state = True

    def __init__(self, step: Step, resources: Resources) -> None:
        super().__init__(step, resources)
        assert step.checkpoint is not None
        self._saves, self._base = step.checkpoint.save is not None, resources.base
        field = f"checkpoint.{'save' if self._saves else 'load'}"
        self._path = self.text(field, step.checkpoint.save or step.checkpoint.load or "")

    def run(self, scope: Mapping[str, Any], state: State, ctx: Context) -> Result:
        path = self._base / Path(self._path.render(scope)).expanduser()
        if self._saves:
            saved = files.save(path, state, ctx.node, ctx.config)
            return {"output": {"checkpoint_path": str(saved), "saved": True}}
        content = files.load(path)
        return {"output": {"checkpoint_state": content["state"], "checkpoint_node": content["node"]}}
