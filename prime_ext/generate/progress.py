# SPDX-License-Identifier: Apache-2.0
"""A progress bar over the responses of a backend."""

from collections.abc import Iterator, Sequence

from tqdm import tqdm

from prime_ext.generate.backend import Backend, Request, Response


def generate_with_progress(
    backend: Backend, requests: Sequence[Request], title: str = "", done: int = 0
) -> Iterator[Response]:
    """The responses of a backend, with a bar of those done, tokens per second, failures and time left.

    Args:
        backend: what answers.
        requests: what is asked of it.
        title: before the bar.
        done: responses of an earlier run, which are part of the whole but not of the speed.
    """
    tokens = failed = 0
    bar = tqdm(
        total=done + len(requests),
        initial=done,
        desc=title or None,
        unit=" responses",
        # One response may take minutes: the average over all says more than the last ones.
        smoothing=0,
        dynamic_ncols=True,
    )
    with bar:
        for response in backend.generate(requests):
            tokens += response.tokens
            failed += response.finish == "failed"
            seconds = bar.format_dict["elapsed"]
            said = f"{tokens / seconds:.0f} tokens/s" if seconds > 0 else ""
            bar.set_postfix_str(said + (f", {failed} failed" if failed else ""), refresh=False)
            bar.update()
            yield response
