"""The page over HTTP, for the browsers of one user: Starlette routes, behind :mod:`hvd_elastic_ext.dashboard.guard`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hvd_elastic_ext.core.errors import ElasticError, UsageError
from hvd_elastic_ext.core.json_text import to_text
from hvd_elastic_ext.dashboard import files, guard
from hvd_elastic_ext.dashboard.guests import Guests
from hvd_elastic_ext.dashboard.jobs import Job, Jobs, summary
from hvd_elastic_ext.dashboard.logs import PART, Logs
from hvd_elastic_ext.dashboard.watch import Watch, Watches
from hvd_elastic_ext.report.timeline import text

if TYPE_CHECKING:
    from hvd_elastic_ext.dashboard.namespace import Namespace

MAX_WATCHES: Final = 4
"""Most jobs whose data stay in memory while no page shows them."""
MAX_STREAMS: Final = 16
"""Most pages that are open at the same time."""
MAX_BODY: Final = 4096


class Answer(Response):
    """A JSON response; it may contain any text of a job, also lone surrogates, and any number."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Return the content as JSON in bytes."""
        return to_text(content).encode()


class Guarded:
    """Checks each request: ``Host`` must name this machine; data need the token; a change must come from the page."""

    def __init__(self, app: ASGIApp, *, token: str, names: Collection[str], guests: Guests) -> None:
        self._app, self._token, self._names, self._guests = app, token, names, guests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            return
        request, client = Request(scope), scope.get("client")
        self._guests.asked(client)
        try:
            refused = self._refusal(request)
            await (self._app if refused is None else refused)(scope, receive, _with_headers(send))
        finally:
            self._guests.answered(client)

    def _refusal(self, request: Request) -> Response | None:
        host, headers = request.headers.get("host"), request.headers
        if not guard.is_named(host, self._names):
            return PlainTextResponse("this server has another name; open the address that the command printed\n", 421)
        # The path that routes use. The path of ``request.url`` may include a part of ``Host``.
        if request.scope["path"].lstrip("/") in ("", *files.TYPES, *files.LIBRARY):
            return None
        if not guard.has_token(self._token, headers.get("authorization")):
            return PlainTextResponse("open the whole address that the command printed: it holds the token\n", 401)
        self._guests.showed_token(request.scope.get("client"))
        if request.method == "POST" and not guard.is_same_origin(headers.get("origin"), host):
            return PlainTextResponse("only the page itself may change a job\n", 403)
        return None


def _with_headers(send: Send) -> Send:
    async def sends(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in guard.HEADERS.items():
                headers.setdefault(name, value)
            headers["Content-Security-Policy"] = guard.POLICY
        await send(message)

    return sends


def app_of(
    jobs: Jobs, *, token: str, names: Collection[str], guests: Guests, namespace: Namespace | None = None
) -> ASGIApp:
    """Return the server application. ``names``: host names of this server that a browser may use, besides addresses."""
    site = Site(jobs, namespace)
    handlers: dict[str, Callable[[Request], Awaitable[Response]]] = {
        "/api/jobs": site.list_jobs,
        "/api/cluster": site.list_cluster,
        "/api/live": site.live,
        "/api/logs": site.list_logs,
        "/api/log": site.log,
        "/api/search": site.search,
    }
    routes = [Route("/", site.file), Route("/{name}", site.file)]
    routes += [Route(path, _usage_errors_answered(handler), methods=["GET"]) for path, handler in handlers.items()]
    routes.append(Route("/api/act", _usage_errors_answered(site.act), methods=["POST"]))
    return Guarded(Starlette(routes=routes), token=token, names=names, guests=guests)


def _usage_errors_answered(
    handler: Callable[[Request], Awaitable[Response]],
) -> Callable[[Request], Awaitable[Response]]:
    """Return a handler that answers :class:`UsageError` with its line, instead of a server error."""

    async def answered(request: Request) -> Response:
        try:
            return await handler(request)
        except ElasticError as error:
            return Answer({"error": str(error)}, 400)

    return answered


class Site:
    """The handlers. Everything that may wait for a disk or a launcher does so in a thread."""

    def __init__(self, jobs: Jobs, namespace: Namespace | None) -> None:
        self._jobs, self._watches, self._namespace = jobs, Watches(MAX_WATCHES), namespace
        self._streams = 0

    async def file(self, request: Request) -> Response:
        """Return one of the page's own files; they contain no data of a job."""
        name = request.path_params.get("name", "page.html")
        if name in files.LIBRARY and (part := files.library(name)) is not None:
            headers = {"Content-Type": files.SCRIPT_TYPE, "Cache-Control": guard.FOREVER}
            return FileResponse(part, headers=headers)
        if name not in files.TYPES:
            return PlainTextResponse("there is no such file\n", 404)
        return Response(files.read(name), headers={"Content-Type": files.TYPES[name]})

    async def list_jobs(self, _: Request) -> Response:
        """Return a row for each job."""
        return Answer(await asyncio.to_thread(lambda: [summary(job) for job in self._jobs.all()]))

    async def list_cluster(self, _: Request) -> Response:
        """Return the jobs of a namespace, if one was named."""
        return Answer({} if self._namespace is None else await asyncio.to_thread(self._namespace.answer))

    async def live(self, request: Request) -> Response:
        """The parts of one job's page as they change."""
        job = await self._job(request)
        if self._streams >= MAX_STREAMS:
            return PlainTextResponse("too many pages are open; close some\n", 503)
        return StreamingResponse(self._counted(self._watches.of(job)), media_type="text/event-stream")

    async def _counted(self, watch: Watch) -> AsyncIterator[str]:
        self._streams += 1
        try:
            async for event in watch.stream():
                yield event
        finally:
            self._streams -= 1

    async def list_logs(self, request: Request) -> Response:
        """Return the list of output files."""
        logs = await self._logs(request)
        if logs is None:
            return Answer({"folder": None, "files": []})
        folder, found = logs
        return Answer({"folder": str(folder), "files": await asyncio.to_thread(found.files)})

    async def log(self, request: Request) -> Response:
        """A part of a file: its end, ``start``, or what was written around ``t``; and which process wrote what."""
        asked, logs = request.query_params, await self._logs(request)
        name = asked.get("file", "")
        if logs is None:
            raise UsageError("the output of this job was not kept")
        around = _number(asked.get("t"))
        start, end = _number(asked.get("start")), _number(asked.get("end"))

        def read() -> dict[str, Any]:
            folder, output = logs
            if not folder.is_dir():
                raise UsageError(f"the output is not here: there is no folder {folder} on this machine")
            if around is not None:
                part = output.around(name, around)
            else:
                limits = {"start": None if start is None else int(start), "end": None if end is None else int(end)}
                part = output.read(name, length=PART, **limits)
            sections = output.sections(name) if asked.get("sections") else []
            return {**part._asdict(), "sections": sections[-200:]}

        return Answer(await asyncio.to_thread(read))

    async def search(self, request: Request) -> Response:
        """Return lines of output that contain a text."""
        asked, logs = request.query_params, await self._logs(request)
        if logs is None:
            raise UsageError("the output of this job was not kept")
        generation = _number(asked.get("generation"))

        def found() -> dict[str, Any]:
            number = None if generation is None else int(generation)
            return logs[1].search(asked.get("q", "")[:200], host=asked.get("host", ""), generation=number)

        return Answer(await asyncio.to_thread(found))

    async def act(self, request: Request) -> Response:
        """Block or clear a host."""
        job = await self._job(request)
        if request.headers.get("content-type", "").partition(";")[0] != "application/json":
            raise UsageError("a change is sent as JSON")
        body = b""
        async for piece in request.stream():
            body += piece
            if len(body) > MAX_BODY:
                raise UsageError("a change is at most 4096 bytes long")
        try:
            asked = json.loads(body)
        except (ValueError, RecursionError):
            asked = None
        if not isinstance(asked, dict):
            raise UsageError("a change is one JSON object")
        watch = self._watches.of(job)
        return Answer({"said": await asyncio.to_thread(watch.launcher.act, asked)})

    async def _job(self, request: Request) -> Job:
        return await asyncio.to_thread(self._jobs.get, request.query_params.get("job", ""))

    async def _logs(self, request: Request) -> tuple[Path, Logs] | None:
        """Return the output of a job, from the folder in its newest start record; None if output is not kept."""
        watch = self._watches.of(await self._job(request))
        try:
            started = await watch.started()
        except OSError as error:
            raise UsageError(f"{watch.job.journal} cannot be read: {error.strerror}") from None
        folder = "" if started is None else text(started.get("output"))
        return (Path(folder), watch.logs(Path(folder))) if folder else None


def _number(given: str | None) -> float | None:
    if not given:
        return None
    try:
        value = float(given)
    except ValueError:
        raise UsageError(f"{given!r} is not a number") from None
    if not 0 <= value < 1e15:
        raise UsageError(f"{given!r} is too large, or negative")
    return value
