"""A model hub's release becomes a folder: completely, or headers only (a few MB of a release of a terabyte).

The hub is spoken to through huggingface_hub, which knows tokens, redirects, caches and offline mode. HF_ENDPOINT is
read at the time of the call. What a hub lists is somebody else's text: every name is checked before it becomes a path.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from huggingface_hub import HfApi, hf_hub_download, hf_hub_url, snapshot_download
from huggingface_hub import errors as hub_errors
from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]  # httpx's or its successor's, as installed
from huggingface_hub.utils import (  # type: ignore[attr-defined]
    build_hf_headers,
    hf_raise_for_status,
    http_stream_backoff,
)
from huggingface_hub.utils import tqdm as hub_tqdm  # type: ignore[attr-defined]

from dayzero.errors import DayzeroError, HubError, ReleaseError, StoreError
from dayzero.progress import Progress
from dayzero.schema import from_json, to_json
from dayzero.schema.manifest import MANIFEST, Manifest, ManifestFile, save_manifest
from dayzero.schema.store import write_atomic

from .digests import cache_folder, read_manifest
from .folder import config_name, config_names, inside, refuse_pickles, role, safe_name
from .headers import PREFIX, header_length
from .index import Shards, choose, index_name, read_weight_map
from .local import Remote
from .threads import Meter, each

TRIES = 4
"""How often something is asked for whose connection breaks."""
TIMEOUT = 30.0
"""Seconds without a byte after which a connection counts as broken."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Copy:
    """A hub's release on this machine."""

    folder: Path
    """Where it is."""
    commit: str
    """Which commit it is."""
    listing: dict[str, Remote]
    """The files as the hub lists them."""


def _bar(meter: Meter) -> type[Any]:
    """A progress bar for huggingface_hub that draws nothing and tells `meter`."""

    class Bar(hub_tqdm):  # type: ignore[misc, unused-ignore]
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **(options | {"disable": True}))  # type: ignore[no-untyped-call]

        def update(self, n: float | None = 1) -> None:
            meter.add(int(n or 0))

    return Bar


@dataclass(frozen=True, slots=True)
class _Repo:
    id: str
    commit: str
    endpoint: str | None
    """None: huggingface_hub's own."""
    listing: dict[str, Remote]

    def download(self, name: str, meter: Meter, cache_dir: Path | None = None, local_dir: Path | None = None) -> Path:
        """Fetch a whole file into a cache or a folder; a broken connection is continued where it broke."""
        return Path(_patiently(lambda: hf_hub_download(
            self.id, name, revision=self.commit, endpoint=self.endpoint, tqdm_class=_bar(meter),
            cache_dir=cache_dir, local_dir=local_dir)))  # fmt: skip

    def bytes_of(self, name: str, start: int, count: int) -> bytes:
        """Bytes of a file by range requests; a server that ignores the range is cut off as soon as they have come."""
        got = bytearray()

        def go_on() -> None:
            headers = {**build_hf_headers(), "Accept-Encoding": "identity",
                       "Range": f"bytes={start + len(got)}-{start + count - 1}"}  # fmt: skip
            url = self.listing[name].url
            with http_stream_backoff("GET", url, headers=headers, timeout=TIMEOUT, retry_on_exceptions=()) as response:
                hf_raise_for_status(response)
                skip = 0 if response.status_code == 206 else start + len(got)
                for chunk in response.iter_raw():
                    got.extend(chunk[skip:])
                    skip = max(0, skip - len(chunk))
                    if len(got) >= count:
                        return

        for _ in range(TRIES):
            if len(got) < count:
                _patiently(go_on)
        if len(got) >= count:
            return bytes(got[:count])
        raise HubError(f"{self.id}: {name} ends after {start + len(got)} bytes", "try again later")


def fetch(repo: str, *, revision: str | None, metadata_only: bool, cache: Path | None, progress: Progress) -> Copy:
    """A local copy of the model `repo`: every file with a role; `metadata_only`: headers in place of weights.

    Whole files go to the hub's own cache (below `cache`, if given), headers below `cache_folder(cache)`. In offline
    mode (HF_HUB_OFFLINE) only what is there already is found. Raises HubError, ReleaseError, StoreError,
    UnsafePathError.
    """
    with _explained(repo, revision):
        try:
            known = _look_up(repo, revision)
        except hub_errors.OfflineModeIsEnabled:
            return _offline(repo, revision, metadata_only, cache)
        if config_name(known.listing) is None:
            raise ReleaseError(f"{repo} has no {config_names()}: not a release", "give the id of a model's release")
        home = _home(repo, cache)
        if metadata_only:
            copy = _fetch_headers(known, home / known.commit, progress)
        else:
            copy = _fetch_all(known, cache and cache / "hub", progress)
        write_atomic(home / "refs.json", to_json(_refs(home) | {revision or "main": known.commit}))
        return copy


def published(repo: str, revision: str | None) -> tuple[str, dict[str, Remote]]:
    """(commit, the files as the hub lists them now). Raises HubError, UnsafePathError."""
    with _explained(repo, revision):
        known = _look_up(repo, revision)
        return known.commit, known.listing


def local_copy(repo: str, revision: str | None, cache: Path | None) -> Path:
    """Where this machine keeps the files of a hub's release, without asking the hub. Raises HubError."""
    with _explained(repo, revision):
        return _offline(repo, revision, False, cache).folder


def _look_up(repo: str, revision: str | None) -> _Repo:
    endpoint = os.environ.get("HF_ENDPOINT") or None
    info = _patiently(lambda: HfApi(endpoint=endpoint).model_info(
        repo, revision=revision, files_metadata=True, timeout=TIMEOUT))  # fmt: skip
    commit = info.sha or ""
    if not re.fullmatch("[0-9a-f]{7,64}", commit):
        raise HubError(f"the hub states no commit for {repo}", "check HF_ENDPOINT")
    listing = {}
    for sibling in info.siblings or ():
        name = safe_name(sibling.rfilename)
        if not name.startswith(".") and "/." not in name:
            url = hf_hub_url(repo, name, revision=commit, endpoint=endpoint)
            listing[name] = Remote(url=url, size=sibling.size, sha256=sibling.lfs.sha256 if sibling.lfs else None)
    return _Repo(id=repo, commit=commit, endpoint=endpoint, listing=listing)


def _small(repo: _Repo) -> list[str]:
    return [name for name in repo.listing if role(name, ()) != "other"]


def _shards(repo: _Repo, folder: Path) -> Shards:
    """The shards, from the index, which is in `folder` already. Raises ReleaseError for a release of pickles."""
    index = index_name(repo.listing)
    shards = choose(repo.listing, read_weight_map(folder, index) if index else None)
    if not shards.present and not shards.missing:
        refuse_pickles(repo.listing)
    return shards


def _fetch_all(repo: _Repo, cache: Path | None, progress: Progress) -> Copy:
    def get(names: list[str] | tuple[str, ...]) -> None:
        meter = Meter(f"downloading {repo.id}", sum(repo.listing[name].size or 0 for name in names), progress)
        for _ in each(lambda name: repo.download(name, meter, cache_dir=cache), names, meter):
            pass

    name = config_name(repo.listing) or ""
    config = repo.download(name, Meter(name, 0, progress), cache_dir=cache)
    get(_small(repo))
    get(_shards(repo, config.parent).present)
    return Copy(folder=config.parent, commit=repo.commit, listing=repo.listing)


def _home(repo: str, cache: Path | None) -> Path:
    return cache_folder(cache) / "headers" / repo.replace("/", "--")


def _fetch_headers(repo: _Repo, folder: Path, progress: Progress) -> Copy:
    """Small files whole, shards as a header and a hole. The manifest is written last: with it the copy is complete."""
    if not (folder / MANIFEST).exists():
        small = _small(repo)
        meter = Meter(f"downloading {repo.id}", sum(repo.listing[name].size or 0 for name in small), progress)
        for _ in each(lambda name: repo.download(name, meter, local_dir=folder), small, meter):
            pass
        shards = _shards(repo, folder).present
        for done, _ in enumerate(each(lambda name: _write_header(repo, name, folder), shards), start=1):
            progress.update(f"fetching headers of {repo.id}", done, len(shards))
        listed = {name: ManifestFile(size=file.size or 0, sha256=file.sha256) for name, file in repo.listing.items()}
        save_manifest(folder, Manifest(files=listed, headers_only=True))
    return Copy(folder=folder.resolve(), commit=repo.commit, listing=repo.listing)


def _write_header(repo: _Repo, name: str, folder: Path) -> None:
    path = inside(folder, name)
    size = repo.listing[name].size
    if size is None:
        raise HubError(f"the hub does not state the size of {name}", "check HF_ENDPOINT")
    if path.exists():
        return
    prefix = repo.bytes_of(name, 0, min(PREFIX, size))
    text = repo.bytes_of(name, PREFIX, header_length(prefix, size, name))
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            file.write(prefix + text)
            file.truncate(size)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def _refs(home: Path) -> dict[str, str]:
    """Revision -> commit as last seen; only offline mode needs it, so a damaged file counts as none."""
    try:
        return from_json((home / "refs.json").read_bytes(), dict[str, str])
    except (OSError, msgspec.DecodeError, UnicodeError):
        return {}


def _offline(repo: str, revision: str | None, metadata_only: bool, cache: Path | None) -> Copy:
    home = _home(repo, cache)
    commit = _refs(home).get(revision or "main", revision or "")
    if not metadata_only:
        where = Path(snapshot_download(repo, revision=commit or None, cache_dir=cache and cache / "hub",
                                       local_files_only=True))  # fmt: skip
        return Copy(folder=where, commit=where.name, listing={})
    manifest = read_manifest(home / commit) if re.fullmatch("[0-9a-f]{7,64}", commit) else None
    if manifest is None:
        raise HubError(f"offline, and the headers of {repo} were not fetched before",
                       "unset HF_HUB_OFFLINE, or give a folder")  # fmt: skip
    listing = {name: Remote(url=hf_hub_url(repo, name, revision=commit), size=file.size, sha256=file.sha256)
               for name, file in manifest.files.items()}  # fmt: skip
    return Copy(folder=(home / commit).resolve(), commit=commit, listing=listing)


def _patiently(call: Callable[[], T]) -> T:
    """The call's result; a connection that breaks, or a server that is busy, is given some more tries."""
    for wait in (*(0.25 * 3**turn for turn in range(TRIES - 1)), None):
        try:
            return call()
        except hub_errors.HfHubHTTPError as error:
            if wait is None or error.response.status_code not in (408, 429, 500, 502, 503, 504):
                raise
        except (HTTPError, hub_errors.LocalEntryNotFoundError):
            if wait is None:
                raise
        time.sleep(wait)
    raise AssertionError("the last turn returns or raises")


@contextlib.contextmanager
def _explained(repo: str, revision: str | None) -> Iterator[None]:
    """What goes wrong between here and the hub, as a HubError of two lines."""
    try:
        yield
    except DayzeroError:
        raise
    except hub_errors.GatedRepoError:
        raise HubError(f"{repo} is gated: the hub gives it only to those who accepted its terms",
                       "accept them on its page and set HF_TOKEN to a token of that account") from None
    except hub_errors.RepositoryNotFoundError:
        raise HubError(f"the hub has no model {repo}, or it is private",
                       "check the name and HF_TOKEN; if a folder was meant, there is none of that name here") from None
    except hub_errors.RevisionNotFoundError:
        raise HubError(f"{repo} has no revision {revision!r}", "name a branch, a tag or a commit of it") from None
    except (hub_errors.OfflineModeIsEnabled, hub_errors.LocalEntryNotFoundError):
        raise HubError(f"{repo} is not on this machine and the hub cannot be reached",
                       "check the network, HF_ENDPOINT and HF_HUB_OFFLINE, or give a folder") from None
    except hub_errors.HfHubHTTPError as error:
        raise HubError(f"the hub answers {error.response.status_code} for {repo}",
                       "check HF_TOKEN and HF_ENDPOINT, or try again later") from None
    except HTTPError as error:
        raise HubError(f"the connection to the hub broke {TRIES} times ({type(error).__name__})",
                       "run the same command again: it continues where it stopped") from None
    except hub_errors.HFValidationError:
        raise HubError(f"not a hub id: {repo!r}", "it looks like org/name") from None
    except OSError as error:
        if error.errno is None:
            raise HubError(f"{repo}: what came from the hub is not complete", "run the same command again") from None
        raise StoreError(f"cannot keep {repo}: {error.strerror}",
                         "free some space, or set HF_HOME and XDG_CACHE_HOME") from None
