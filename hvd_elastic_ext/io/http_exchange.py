"""One HTTP request with a deadline for the whole of it, and a bound on the answer.

The timeout of the standard library is for each read: a server that sends a byte a second keeps its client for ever.
"""

from __future__ import annotations

import functools
import http.client
import socket
import time
import urllib.error
import urllib.request
from typing import Any, Final, NamedTuple

from hvd_elastic_ext.core.printable import one_line
from hvd_elastic_ext.io.timed_stream import TimedStream

MAX_REASON: Final = 120
"""Most characters of a server's own words that are kept."""


class NoAnswer(Exception):
    """There is no usable answer; ``str()`` says why, in one printable line."""


class Answer(NamedTuple):
    """``reason``: the server's words beside the status, in one printable line."""

    status: int
    reason: str
    body: bytes

    @property
    def said(self) -> str:
        """Status and reason."""
        return f"{self.status} {self.reason}".rstrip()


def timed_response(sock: socket.socket, *args: Any, within_s: float, most: int, **named: Any) -> Any:
    """A ``response_class`` of :class:`http.client.HTTPConnection`, whose whole answer comes within ``within_s``."""
    stream: Any = TimedStream(sock, time.monotonic() + within_s, most)
    return http.client.HTTPResponse(stream, *args, **named)


def exchange(
    url: str,
    *,
    headers: dict[str, str],
    within_s: float,
    most: int,
    body: bytes | None = None,
    redirects: bool = True,
) -> Answer:
    """Send a GET, or a POST of ``body``, and return the answer, whatever its status. Raises :class:`NoAnswer`.

    ``most``: bytes of the body. Each of ``redirects`` has ``within_s`` seconds again; without them one is an answer.
    """
    request = urllib.request.Request(url, data=body, headers=headers)  # noqa: S310 - callers check the scheme
    try:
        with _opener(within_s, most, redirects=redirects).open(request, timeout=within_s) as answer:
            data = answer.read(most + 1)
            if len(data) > most:
                raise NoAnswer(f"its answer is longer than {most} bytes")
            if answer.length:
                raise NoAnswer("its answer breaks off")
            return Answer(answer.status, one_line(answer.reason or "", most=MAX_REASON), data)
    except urllib.error.HTTPError as error:
        with error:
            return Answer(error.code, one_line(str(error.reason or ""), most=MAX_REASON), b"")
    except http.client.HTTPException as error:  # its text is the server's
        raise NoAnswer(f"its answer is not HTTP ({type(error).__name__})") from None
    except TimeoutError:
        raise NoAnswer(f"no complete answer within {within_s:g} s") from None
    except OSError as error:
        reason = getattr(error, "reason", None) or error.strerror or error
        if isinstance(reason, TimeoutError):
            raise NoAnswer(f"no complete answer within {within_s:g} s") from None
        reason = getattr(reason, "strerror", None) or reason
        raise NoAnswer(one_line(str(reason), most=MAX_REASON)) from None
    except ValueError as error:  # of a URL that a redirect names, or of a name that is not valid
        raise NoAnswer(f"it cannot be asked ({type(error).__name__})") from None


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """None: the answer counts as it is."""


class _WebOnly(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        """A redirect to FTP, which has no deadline, counts as an answer."""
        web = newurl.lower().startswith(("http://", "https://"))
        return super().redirect_request(req, fp, code, msg, headers, newurl) if web else None


class _Http(urllib.request.HTTPHandler):
    def __init__(self, response: Any) -> None:
        super().__init__()
        self._response = response

    def http_open(self, request: urllib.request.Request) -> Any:
        return self.do_open(functools.partial(_connection, http.client.HTTPConnection, self._response), request)


class _Https(urllib.request.HTTPSHandler):
    def __init__(self, response: Any) -> None:
        super().__init__()
        self._response = response

    def https_open(self, request: urllib.request.Request) -> Any:
        return self.do_open(functools.partial(_connection, http.client.HTTPSConnection, self._response), request)


def _connection(kind: Any, response: Any, *args: Any, **named: Any) -> Any:
    made = kind(*args, **named)
    made.response_class = response
    return made


def _opener(within_s: float, most: int, *, redirects: bool) -> urllib.request.OpenerDirector:
    response = functools.partial(timed_response, within_s=within_s, most=most + (256 << 10))  # status and headers too
    handlers: list[urllib.request.BaseHandler] = [_Http(response), _Https(response)]
    return urllib.request.build_opener(*handlers, _WebOnly if redirects else _NoRedirect)
