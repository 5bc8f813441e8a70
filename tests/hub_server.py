"""A small Hugging Face Hub on this machine: the endpoints that its client libraries call, in memory.

Repositories have branches and commits; files come in commits or, large ones, through the LFS protocol. Tokens
decide who may write. The tests start it in a thread and run the libraries in processes of their own, because
these read ``HF_ENDPOINT`` when they are imported.
"""

import asyncio
import base64
import hashlib
import json
import threading
import time
from dataclasses import dataclass, field

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse

TOKENS = {"hf_ada": "ada", "hf_bob": "bob"}
LICENCES = ("unknown", "cc-by-4.0", "apache-2.0")
LARGE = 10_000
"""Bytes from which a file goes through LFS."""


@dataclass
class Repository:
    private: bool
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)

    def commit(self, branch: str, files: dict[str, bytes]) -> str:
        content = json.dumps([len(self.commits), sorted(files)]).encode()
        sha = hashlib.sha1(content).hexdigest()
        self.commits[sha], self.branches[branch] = files, sha
        return sha

    def copy(self, **changes: bytes) -> "Repository":
        """Return a public repository with the same files, and some others."""
        other = Repository(private=False)
        other.commit("main", {**self.files(), **changes})
        return other

    def files(self, revision: str = "main") -> dict[str, bytes]:
        return self.commits[self.branches.get(revision, revision)]

    def has(self, revision: str) -> bool:
        return revision in self.branches or revision in self.commits


class HubServer:
    """``with HubServer() as hub``: ``hub.address`` is its address, ``hub.repositories`` its content."""

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}  # "models/ada/scenes"
        self.blobs: dict[str, bytes] = {}
        self.requests: list[str] = []
        self.broken = ""  # answer 500 where a path contains this
        self.stalls = ""  # once, send half of a file whose name contains this, and wait
        self.stalled = threading.Event()
        config = uvicorn.Config(make_app(self), port=0, log_level="warning", timeout_graceful_shutdown=1)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)

    def __enter__(self) -> "HubServer":
        self._thread.start()
        end = time.monotonic() + 30
        while not self._server.started:
            assert time.monotonic() < end
            time.sleep(0.01)
        port = self._server.servers[0].sockets[0].getsockname()[1]
        self.address = f"http://127.0.0.1:{port}"
        return self

    def __exit__(self, *error: object) -> None:
        self._server.should_exit = True
        self._thread.join(10)


def make_app(hub: HubServer) -> FastAPI:
    app = FastAPI()

    @app.middleware("http")
    async def record(request: Request, call_next):
        hub.requests.append(f"{request.method} {request.url.path}")
        if hub.broken and hub.broken in request.url.path:
            return JSONResponse({"error": "Internal error"}, 500)
        return await call_next(request)

    def user(request: Request) -> str | None:
        return TOKENS.get(request.headers.get("authorization", "").removeprefix("Bearer "))

    def refuse(status: int, code: str = "", message: str = "refused") -> JSONResponse:
        return JSONResponse({"error": message}, status, {"X-Error-Code": code, "X-Error-Message": message})

    def find(request: Request, kind: str, repo: str) -> Repository | JSONResponse:
        found = hub.repositories.get(f"{kind}/{repo}")
        if found is None or (found.private and user(request) != repo.split("/")[0]):
            return refuse(401 if user(request) is None else 404, "RepoNotFound", "Repository not found")
        return found

    def describe(path: str, content: bytes) -> dict:
        entry = {"type": "file", "path": path, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
        if len(content) >= LARGE:
            digest = hashlib.sha256(content).hexdigest()
            entry["lfs"] = {"oid": digest, "size": len(content), "pointerSize": 130}
        return entry

    @app.post("/api/repos/create")
    async def create(request: Request):
        wanted = await request.json()
        owner = wanted.get("organization") or user(request)
        if user(request) is None:
            return refuse(401, message="Invalid username or password.")
        if user(request) != owner:
            return refuse(403, message="You don't have the rights to create a model under this namespace")
        repo, kind = f"{owner}/{wanted['name']}", f"{wanted.get('type') or 'model'}s"
        url = f"{hub.address}/{'' if kind == 'models' else kind + '/'}{repo}"
        if f"{kind}/{repo}" in hub.repositories:
            return JSONResponse({"error": "You already created this repo", "url": url}, 409)
        created = Repository(wanted.get("visibility") == "private" or bool(wanted.get("private")))
        created.commit("main", {".gitattributes": b"*.safetensors filter=lfs\n"})
        hub.repositories[f"{kind}/{repo}"] = created
        return {"url": url, "name": repo, "id": repo}

    @app.post("/api/validate-yaml")
    async def validate_yaml(request: Request):
        import yaml  # which comes with the client library

        card = yaml.safe_load((await request.json())["content"].split("---")[1])
        errors = [] if card.get("license") in LICENCES else [{"message": '"license" must be one of [...]'}]
        return JSONResponse({"errors": errors, "warnings": []}, 400 if errors else 200)

    @app.get("/api/{kind}/{user_name}/{name}")
    @app.get("/api/{kind}/{user_name}/{name}/revision/{revision}")
    async def info(request: Request, kind: str, user_name: str, name: str, revision: str = "main"):
        repo = find(request, kind, f"{user_name}/{name}")
        if isinstance(repo, Response):
            return repo
        if not repo.has(revision):
            return refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        sha = repo.branches.get(revision, revision)
        siblings = [{"rfilename": path, "size": len(file)} for path, file in repo.files(revision).items()]
        return {
            "id": f"{user_name}/{name}",
            "sha": sha,
            "private": repo.private,
            "siblings": siblings,
            "tags": [],
        }

    @app.get("/api/{kind}/{user_name}/{name}/tree/{revision}")
    async def tree(request: Request, kind: str, user_name: str, name: str, revision: str):
        repo = find(request, kind, f"{user_name}/{name}")
        if isinstance(repo, Response):
            return repo
        if not repo.has(revision):
            return refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return [describe(path, content) for path, content in repo.files(revision).items()]

    @app.post("/api/{kind}/{user_name}/{name}/branch/{branch}")
    async def branch(request: Request, kind: str, user_name: str, name: str, branch: str):
        repo = find(request, kind, f"{user_name}/{name}")
        if branch in repo.branches:
            return refuse(409, message="Reference already exists")
        repo.branches[branch] = repo.branches["main"]
        return {}

    @app.post("/api/{kind}/{user_name}/{name}/preupload/{revision}")
    async def preupload(request: Request, kind: str, user_name: str, name: str, revision: str):
        if user(request) != user_name:
            return refuse(403)
        files = [
            {
                "path": file["path"],
                "uploadMode": "lfs" if file["size"] >= LARGE else "regular",
                "shouldIgnore": False,
            }
            for file in (await request.json())["files"]
        ]
        return {"files": files}

    @app.post("/{user_name}/{name}.git/info/lfs/objects/batch")
    async def batch(request: Request, user_name: str, name: str):
        objects = [
            {**each, "actions": {"upload": {"href": f"{hub.address}/lfs/{each['oid']}"}}}
            if each["oid"] not in hub.blobs
            else each
            for each in (await request.json())["objects"]
        ]
        return JSONResponse({"transfer": "basic", "objects": objects})

    @app.put("/lfs/{oid}")
    async def upload(request: Request, oid: str):
        content = await request.body()
        if hashlib.sha256(content).hexdigest() != oid:
            return refuse(400)
        hub.blobs[oid] = content
        return {}

    @app.post("/api/{kind}/{user_name}/{name}/commit/{revision}")
    async def commit(request: Request, kind: str, user_name: str, name: str, revision: str):
        if user(request) != user_name:
            return refuse(403)
        repo = hub.repositories[f"{kind}/{user_name}/{name}"]
        files = dict(repo.files(revision))
        for line in (await request.body()).splitlines():
            operation = json.loads(line)
            value = operation["value"]
            if operation["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif operation["key"] == "lfsFile":
                files[value["path"]] = hub.blobs[value["oid"]]
            elif operation["key"] == "deletedFile":
                del files[value["path"]]
        sha = repo.commit(revision, files)
        return {"commitOid": sha, "commitUrl": f"{hub.address}/{user_name}/{name}/commit/{sha}"}

    @app.api_route("/{user_name}/{name}/resolve/{revision}/{path:path}", methods=["GET", "HEAD"])
    async def resolve(request: Request, user_name: str, name: str, revision: str, path: str):
        repo = find(request, "models", f"{user_name}/{name}")
        if isinstance(repo, Response):
            return repo
        if not repo.has(revision):
            return refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        if path not in repo.files(revision):
            return refuse(404, "EntryNotFound", "Entry not found")
        content, entry = repo.files(revision)[path], describe(path, repo.files(revision)[path])
        headers = {
            "ETag": f'"{entry["lfs"]["oid"] if "lfs" in entry else entry["oid"]}"',
            "X-Repo-Commit": repo.branches.get(revision, revision),
            "Accept-Ranges": "bytes",
        }
        start = 0
        if request.headers.get("range", "").startswith("bytes="):
            start, _, stop = request.headers["range"][6:].partition("-")
            start, stop = int(start), min(int(stop or len(content)), len(content) - 1)
            headers["Content-Range"] = f"bytes {start}-{stop}/{len(content)}"
            content = content[start : stop + 1]
        headers["Content-Length"] = str(len(content))
        status = 206 if "Content-Range" in headers else 200
        if request.method == "HEAD" or not (hub.stalls and hub.stalls in path):
            return Response(content, status, headers)

        hub.stalls = ""

        async def stall():
            yield content[: len(content) // 2]
            hub.stalled.set()
            for _ in range(600):
                if await request.is_disconnected():
                    return
                await asyncio.sleep(0.1)

        return StreamingResponse(stall(), status, headers)

    return app
