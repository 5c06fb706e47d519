"""Workspaces of interpreters: in real boxes, with real repositories."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from tests.interpreter.workspaces import AS_SOMEBODY, BoxesHost, Shop, opened, sh

from holdfast.api.box.box import Box, Power
from holdfast.api.box.process import Completed
from holdfast.api.box.spec import BoxSpec
from holdfast.api.errors.boxes import BoxGone, CreateFailed
from holdfast.api.errors.interpreters import InvalidInterpreter, WorkspaceConflict, WorkspaceFailed
from holdfast.boxes.service.acquire_rules import How
from holdfast.interpreter.host import AcquiredBox
from holdfast.interpreter.workspace.checkout import ExistingCheckout, Step, WantedCheckout, _Git, plan
from holdfast.interpreter.workspace.repositories import OnHost, Remote, Tip, check_ref, locate
from holdfast.interpreter.workspace.volumes import MEMORY
from holdfast.interpreter.workspace.workspace import (
    FORCED,
    Acquire,
    CurrentBox,
    Keep,
    Kind,
    Recreate,
    WorkspaceConfig,
    decide,
    describe,
)

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
async def shop(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Shop]:
    async with opened(tmp_path_factory.mktemp("workspaces")) as shop:
        yield shop


# --- decisions ---


@pytest.mark.parametrize(
    ("held", "wanted", "expected"),
    [
        (None, WorkspaceConfig(), Acquire()),
        (None, WorkspaceConfig(force_new=True), Recreate(FORCED, deliberate=True)),
        (CurrentBox("v", Power.RUNNING), WorkspaceConfig(), Keep()),
        (CurrentBox("v", Power.RUNNING), WorkspaceConfig(volume="v"), Keep()),
        (CurrentBox("v", Power.RUNNING), WorkspaceConfig(repo_url="/r", ref="x"), Keep()),
        (CurrentBox("v", Power.RUNNING), WorkspaceConfig(context_paths=()), Keep()),
        (CurrentBox("v", Power.STOPPED), WorkspaceConfig(), Acquire()),
        (CurrentBox("v", Power.PAUSED), WorkspaceConfig(), Acquire()),
        (CurrentBox("v", Power.RUNNING), WorkspaceConfig(force_new=True), Recreate(FORCED, deliberate=True)),
        (CurrentBox("v", Power.RUNNING), WorkspaceConfig(volume="w"), Recreate("the volume changed: v → w")),
        (CurrentBox(None, Power.STOPPED), WorkspaceConfig(volume="w"), Recreate("the volume changed: none → w")),
        (CurrentBox("v", None), WorkspaceConfig(), Recreate("the box is gone")),
    ],
)
def test_a_box_is_made_again_for_these_reasons_alone(
    held: CurrentBox | None, wanted: WorkspaceConfig, expected: object
) -> None:
    assert decide(held, wanted) == expected


@pytest.mark.parametrize(
    ("how", "why", "instead", "expected"),
    [
        (How.CREATED, "there was none", None, (Kind.CREATED, "there was none")),
        (How.CREATED, "", None, (Kind.CREATED, "there was none")),
        (How.CREATED, "box b-1 is gone", None, (Kind.RECREATED, "box b-1 is gone")),
        (How.CREATED, "the spec changed: volumes", None, (Kind.RECREATED, "the spec changed: volumes")),
        (How.RESUMED, "it was there", None, (Kind.RESUMED, "it was there")),
        (How.RESTORED, "restored from snapshot s-1", None, (Kind.RESUMED, "restored from snapshot s-1")),
        (How.CREATED, "there was none", FORCED, (Kind.RECREATED, FORCED)),
    ],
)
async def test_each_way_to_a_box_has_its_name(
    how: How, why: str, instead: str | None, expected: tuple[Kind, str], shop: Shop
) -> None:
    box = None
    assert describe(AcquiredBox(box, how, why), instead=instead) == expected  # type: ignore[arg-type]


_HERE = Remote("https://git.example.com/a")
_THERE = Remote("https://git.example.com/b")
_ALL = (Step.FETCH, Step.SWITCH, Step.CHECK_OUT)
_NEXT = (Step.FETCH, Step.CHECK_OUT)


@pytest.mark.parametrize(
    ("found", "wanted", "expected"),
    [
        (None, WantedCheckout(_HERE, None), _ALL),
        (ExistingCheckout(_HERE.identity, "", "c1"), WantedCheckout(_HERE, None), ()),
        (ExistingCheckout(_HERE.identity, "main", "c1"), WantedCheckout(_HERE, "main"), ()),
        (ExistingCheckout(_HERE.identity, "main", "c1"), WantedCheckout(_HERE, "next"), _NEXT),
        (ExistingCheckout(_HERE.identity, "main", None), WantedCheckout(_HERE, "main"), _NEXT),
        (ExistingCheckout(_HERE.identity, "main", "c1", emptied=True), WantedCheckout(_HERE, "main"), _NEXT),
        (ExistingCheckout(_HERE.identity, "main", "c1"), WantedCheckout(_THERE, "main"), _ALL),
        (ExistingCheckout(None, None, None, _HERE.url), WantedCheckout(_HERE, "main"), _NEXT),
        (ExistingCheckout(None, None, None, _THERE.url), WantedCheckout(_HERE, "main"), _ALL),
        (ExistingCheckout(_HERE.identity, "main", "c1"), WantedCheckout(_HERE, "main", Tip("c1", "main")), ()),
        (ExistingCheckout(_HERE.identity, "main", "c1"), WantedCheckout(_HERE, "main", Tip("c2", "main")), _NEXT),
    ],
)
def test_a_checkout_is_changed_as_far_as_it_differs(
    found: ExistingCheckout | None, wanted: WantedCheckout, expected: tuple[Step, ...]
) -> None:
    assert plan(found, wanted) == expected


def test_a_config_leaves_as_it_is_what_it_does_not_name() -> None:
    before = WorkspaceConfig("/r", "main", ("/c",), "v")
    assert WorkspaceConfig().over(before) == before
    assert WorkspaceConfig(ref="next").over(before) == replace(before, ref="next")
    assert WorkspaceConfig(repo_url="/s").over(before) == replace(before, repo_url="/s", ref=None)
    assert WorkspaceConfig(context_paths=()).over(before) == replace(before, context_paths=())
    assert WorkspaceConfig(force_new=True).over(before) == replace(before, force_new=True)


def test_repositories_are_urls_without_secrets_or_folders_here(tmp_path: Path) -> None:
    folder = tmp_path / "repository"
    folder.mkdir()
    assert locate("https://git.example.com/a.git") == Remote("https://git.example.com/a.git")
    for here in (folder, str(folder), f"file://{folder}", f"file://localhost{folder}"):
        assert locate(here) == OnHost(folder)
    for wrong in (
        "", "-x", "a\nb", "https://", "https:///x", "file://elsewhere/x", "git@git.example.com:a/b.git",
        "ssh://git.example.com/a", "git://git.example.com/a", "ext::sh -c x", "nowhere/at/all", "x" * 3000,
    ):  # fmt: skip
        with pytest.raises(InvalidInterpreter):
            locate(wrong)
    with pytest.raises(InvalidInterpreter) as raised:
        locate("https://me:hunter2@git.example.com/a")
    assert "hunter2" not in f"{raised.value} {raised.value.hint}"


def test_a_server_names_the_folders_that_may_be_used(tmp_path: Path) -> None:
    open_, closed = tmp_path / "open", tmp_path / "closed"
    for folder in (open_, closed):
        folder.mkdir()
    (open_ / "link").symlink_to(closed)
    assert locate(open_, roots=[open_]) == OnHost(open_)
    for path in (closed, open_ / "link", open_ / ".." / "closed", tmp_path / "nowhere"):
        with pytest.raises(InvalidInterpreter, match="not among the folders"):
            locate(path, roots=[open_])
    with pytest.raises(InvalidInterpreter, match="not among the folders"):
        locate(open_, roots=())


def test_refs_are_names_and_nothing_that_git_would_take_for_more() -> None:
    for ref in ("main", "feature/a-b", "v1.2", "0f" * 20, "refs/pull/7/head", "größe"):
        assert check_ref(ref) == ref
    assert check_ref("HEAD") is None
    for wrong in (
        "",
        "-x",
        "--upload-pack=x",
        "a b",
        "a..b",
        "a:b",
        "a^",
        "a~1",
        "@{u}",
        "a\0",
        "/a",
        "a/",
        "x.lock",
        "@",
    ):
        with pytest.raises(InvalidInterpreter):
            check_ref(wrong)


# --- the repository ---


async def test_a_folder_of_this_machine_is_cloned_and_followed(shop: Shop) -> None:
    repository = shop.repository()
    repository.git("tag", "v1")
    (repository.folder / "uncommitted.txt").write_text("stays here")
    workspace = shop.workspace()
    made = await workspace.configure(WorkspaceConfig(repo_url=repository.folder))
    assert (made.kind, made.reason) == (Kind.CREATED, "there was none")
    assert made.checkout is not None
    assert (made.checkout.branch, made.checkout.commit) == ("main", repository.git("rev-parse", "HEAD"))
    assert (
        await sh(workspace.box, "cat a.txt; git status --porcelain; git log --format=%s; ls")
        == "one\nfirst\na.txt\nb.txt"
    )

    again = await workspace.configure(WorkspaceConfig(repo_url=repository.folder))
    assert (again.kind, again.changed) == (Kind.REUSED, ()), "nothing has changed"
    second = repository.commit("second", a_txt="two\n")
    moved = await workspace.configure(WorkspaceConfig(repo_url=f"file://{repository.folder}"))
    assert moved.checkout is not None
    assert (moved.kind, moved.checkout.commit) == (Kind.REUSED, second)
    assert await sh(workspace.box, "cat a.txt; git symbolic-ref --short HEAD") == "two\nmain"

    tagged = await workspace.configure(WorkspaceConfig(ref="v1"))
    assert tagged.checkout is not None
    assert tagged.checkout.branch is None
    assert await sh(workspace.box, "cat a.txt") == "one"
    for ref in ("main", second, second[:10]):
        await workspace.configure(WorkspaceConfig(ref=ref))
        assert await sh(workspace.box, "cat a.txt; git rev-parse HEAD") == f"two\n{second}"
    assert str(repository.folder) not in await sh(workspace.box, "cat .git/config"), "the box learns no path of ours"
    assert await sh(workspace.box, "ls -A .holdfast") == "repositories"


async def test_a_branch_is_followed_with_the_commits_that_are_new_alone(shop: Shop) -> None:
    repository = shop.repository()
    workspace = shop.workspace()
    await workspace.configure(WorkspaceConfig(repo_url=repository.folder, ref="main"))
    repository.git("switch", "-q", "-c", "feature")
    tip = repository.commit("more", c_txt="three\n")
    repository.git("switch", "-q", "main")
    done = await workspace.configure(WorkspaceConfig(ref="feature"))
    assert done.checkout is not None
    assert (done.checkout.branch, done.checkout.commit) == ("feature", tip)
    assert await sh(workspace.box, "cat c.txt; git branch --list --format='%(refname:short)'") == "three\nfeature\nmain"
    await workspace.configure(WorkspaceConfig(ref="main"))
    assert await sh(workspace.box, "ls; git rev-parse --symbolic-full-name HEAD") == "a.txt\nb.txt\nrefs/heads/main"


async def test_local_changes_come_along_or_the_change_is_refused(shop: Shop) -> None:
    repository = shop.repository()
    repository.git("branch", "other")
    repository.commit("second", a_txt="two\n")
    workspace = shop.workspace()
    await workspace.configure(WorkspaceConfig(repo_url=repository.folder, ref="main"))
    await sh(workspace.box, "echo changed > b.txt; echo new > notes.txt")
    done = await workspace.configure(WorkspaceConfig(ref="other"))
    assert "kept local changes of b.txt" in done.changed
    assert await sh(workspace.box, "cat a.txt b.txt notes.txt") == "one\nchanged\nnew"
    await sh(workspace.box, "echo mine > a.txt")
    with pytest.raises(WorkspaceConflict, match=r"local changes of a\.txt in the box would be lost") as raised:
        await workspace.configure(WorkspaceConfig(ref="main"))
    assert "force_new" in (raised.value.hint or "")
    assert await sh(workspace.box, "cat a.txt b.txt; git symbolic-ref --short HEAD") == "mine\nchanged\nother"
    assert workspace.config.ref == "other", "what was refused is not what is wanted from now on"


async def test_files_in_the_way_of_a_checkout_are_never_overwritten(shop: Shop) -> None:
    repository = shop.repository()
    repository.git("branch", "before")
    repository.commit("second", c_txt="theirs\n", out_log="theirs\n")
    workspace = shop.workspace()
    await workspace.configure(WorkspaceConfig(repo_url=repository.folder, ref="before"))
    await sh(workspace.box, "echo mine > c.txt")
    with pytest.raises(WorkspaceConflict, match=r"c\.txt in the box would be overwritten"):
        await workspace.configure(WorkspaceConfig(ref="main"))
    await sh(workspace.box, "rm c.txt; echo '*.log' >> .git/info/exclude; echo mine > out.log")
    with pytest.raises(WorkspaceConflict, match=r"out\.log"):
        await workspace.configure(WorkspaceConfig(ref="main"))
    assert await sh(workspace.box, "cat out.log") == "mine", "what git ignores is somebody's, too"

    scratch = shop.workspace()
    await scratch.configure(WorkspaceConfig())
    await sh(scratch.box, "echo mine > a.txt")
    with pytest.raises(WorkspaceConflict, match=r"a\.txt"):
        await scratch.configure(WorkspaceConfig(repo_url=repository.folder))
    assert await sh(scratch.box, "cat a.txt; ls -A") == "mine\n.holdfast\na.txt"
    await sh(scratch.box, "rm a.txt; echo mine > own.txt")
    await scratch.configure(WorkspaceConfig(repo_url=repository.folder))
    assert await sh(scratch.box, "cat a.txt own.txt") == "one\nmine"


async def test_commits_of_the_box_are_never_lost(shop: Shop) -> None:
    repository = shop.repository()
    repository.git("tag", "v1")
    workspace = shop.workspace()
    await workspace.configure(WorkspaceConfig(repo_url=repository.folder, ref="v1"))
    await sh(workspace.box, f"echo mine > mine.txt; git add mine.txt; {AS_SOMEBODY} commit -qm detached")
    mine = await sh(workspace.box, "git rev-parse HEAD")
    done = await workspace.configure(WorkspaceConfig(ref="main"))
    assert f"kept commits that were made in the box, on branch holdfast/kept-{mine[:12]}" in done.changed
    assert await sh(workspace.box, f"git show holdfast/kept-{mine[:12]}:mine.txt") == "mine"

    await sh(workspace.box, f"echo more > mine.txt; git add mine.txt; {AS_SOMEBODY} commit -qm ahead")
    ahead = await sh(workspace.box, "git rev-parse HEAD")
    await workspace.configure(WorkspaceConfig(ref="v1"))
    back = await workspace.configure(WorkspaceConfig(ref="main"))
    assert "kept commits of branch main that were made in the box" in back.changed
    assert await sh(workspace.box, "git rev-parse HEAD; cat mine.txt") == f"{ahead}\nmore"

    repository.commit("theirs", a_txt="theirs\n")
    with pytest.raises(WorkspaceConflict, match=r"branch main in the box and in .* have diverged"):
        await workspace.configure(WorkspaceConfig(ref="main"))
    assert await sh(workspace.box, "git rev-parse HEAD") == ahead


async def test_another_repository_takes_the_place_and_the_old_one_comes_back_as_it_was(shop: Shop) -> None:
    one, two = shop.repository(), shop.repository()
    two.commit("second", a_txt="two's\n", only_txt="two's\n")
    workspace = shop.workspace()
    await workspace.configure(WorkspaceConfig(repo_url=one.folder))
    await sh(workspace.box, "echo mine > b.txt; echo scratch > scratch.txt")
    with pytest.raises(WorkspaceConflict, match=r"b\.txt in the box has local changes"):
        await workspace.configure(WorkspaceConfig(repo_url=two.folder))
    assert await sh(workspace.box, "cat a.txt b.txt; git status --porcelain") == "one\nmine\n M b.txt\n?? scratch.txt"
    await sh(workspace.box, f"{AS_SOMEBODY} commit -qam mine")
    await workspace.configure(WorkspaceConfig(repo_url=two.folder))
    assert await sh(workspace.box, "cat a.txt b.txt only.txt scratch.txt") == "two's\nsame\ntwo's\nscratch"
    assert await sh(workspace.box, "git log --format=%s") == "second\nfirst"
    back = await workspace.configure(WorkspaceConfig(repo_url=one.folder))
    assert back.kind is Kind.REUSED
    assert await sh(workspace.box, "cat a.txt b.txt; ls; git status --porcelain") == (
        "one\nmine\na.txt\nb.txt\nscratch.txt\n?? scratch.txt"
    )


async def test_a_repository_that_does_not_fit_leaves_the_one_that_is_there(shop: Shop) -> None:
    one, two = shop.repository(), shop.repository()
    two.commit("second", scratch_txt="two's\n")
    workspace = shop.workspace()
    await workspace.configure(WorkspaceConfig(repo_url=one.folder))
    await sh(workspace.box, "echo mine > scratch.txt")
    with pytest.raises(WorkspaceConflict, match=r"scratch\.txt"):
        await workspace.configure(WorkspaceConfig(repo_url=two.folder))
    state = "cat a.txt scratch.txt; git status --porcelain; git log --format=%s"
    assert await sh(workspace.box, state) == "one\nmine\n?? scratch.txt\nfirst"
    with pytest.raises(WorkspaceFailed, match="no branch, tag or commit nowhere"):
        await workspace.configure(WorkspaceConfig(repo_url=two.folder, ref="nowhere"))
    assert await sh(workspace.box, state) == "one\nmine\n?? scratch.txt\nfirst"


async def test_a_change_that_was_killed_in_the_middle_is_made_good(shop: Shop) -> None:
    repository = shop.repository()
    workspace = shop.workspace()
    await workspace.configure(WorkspaceConfig(repo_url=repository.folder))
    # As whoever was killed left it: the files are away, and nobody has put them back.
    empty = "git config holdfast.emptied true; git read-tree -mu HEAD $(git hash-object -t tree -w /dev/null); "
    aside = "mv .git .holdfast/repositories/$(git config holdfast.repository)"
    for left in (empty, "git config holdfast.emptied true", empty + aside):
        await sh(workspace.box, left)
        await workspace.configure(WorkspaceConfig(repo_url=repository.folder))
        assert await sh(workspace.box, "cat a.txt; git status --porcelain; git log --format=%s") == "one\nfirst"


async def test_odd_repositories_of_this_machine(shop: Shop) -> None:
    repository = shop.repository()
    tip = repository.commit("second", a_txt="two\n")
    shallow = shop.place("shallow")
    repository.git("clone", "-q", "--depth", "1", f"file://{repository.folder}", str(shallow))
    tree = shop.place("tree")
    repository.git("worktree", "add", "-q", "--detach", str(tree), "HEAD~1")
    bare = shop.place("bare.git")
    repository.git("clone", "-q", "--bare", str(repository.folder), str(bare))
    workspace = shop.workspace()
    for folder, text in ((shallow, "two"), (tree, "one"), (bare, "two")):
        await workspace.configure(WorkspaceConfig(repo_url=folder))
        assert await sh(workspace.box, "cat a.txt; git fsck --no-progress 2>/dev/null >/dev/null && echo sound") == (
            f"{text}\nsound"
        )
    assert await sh(workspace.box, "git rev-parse HEAD") == tip
    empty = shop.place("empty")
    repository.git("init", "-q", str(empty))
    with pytest.raises(WorkspaceFailed, match="has no commits"):
        await workspace.configure(WorkspaceConfig(repo_url=empty))
    with pytest.raises(WorkspaceFailed, match="not a git repository"):
        await workspace.configure(WorkspaceConfig(repo_url=shop.place("x").parent))
    ours = shop.repository()
    (ours.folder / ".holdfast").mkdir()
    ours.commit("ours", **{".holdfast/x": "x"})
    with pytest.raises(WorkspaceConflict, match=r"contains \.holdfast"):
        await workspace.configure(WorkspaceConfig(repo_url=ours.folder))
    assert await sh(workspace.box, "cat a.txt") == "two"


async def test_what_the_box_did_to_its_git_harms_nobody_but_itself(shop: Shop) -> None:
    repository = shop.repository()
    repository.git("branch", "other")
    workspace = shop.workspace()
    await workspace.configure(WorkspaceConfig(repo_url=repository.folder))
    await sh(
        workspace.box, "git config core.fsmonitor 'touch /workspace/ran'; git config holdfast.commit --upload-pack=x"
    )
    await sh(
        workspace.box, "printf '#!/bin/sh\\ntouch /workspace/ran' > .git/hooks/post-checkout; chmod +x .git/hooks/*"
    )
    await workspace.configure(WorkspaceConfig(ref="other"))
    assert await sh(workspace.box, "ls") == "a.txt\nb.txt"
    await sh(workspace.box, "rm -rf .git; ln -s /home/box .git")
    with pytest.raises(WorkspaceConflict, match="is not a folder"):
        await workspace.configure(WorkspaceConfig(ref="main"))


# --- the box ---


async def test_another_process_finds_the_box_again(shop: Shop) -> None:
    repository = shop.repository()
    first = shop.workspace("again")
    await first.configure(WorkspaceConfig(repo_url=repository.folder))
    await sh(first.box, "echo mine > b.txt")
    await first.close()
    await first.close()
    second = shop.workspace("again")
    done = await second.configure(WorkspaceConfig(repo_url=repository.folder))
    assert (done.kind, done.reason, done.changed) == (Kind.RESUMED, "it was there", ())
    assert await sh(second.box, "cat b.txt") == "mine"
    assert second.box is not None
    await shop.boxes.stop(second.box.id)
    started = await second.configure(WorkspaceConfig())
    assert (started.kind, started.reason) == (Kind.RESUMED, "it was stopped and has been started")
    assert await sh(second.box, "cat b.txt") == "mine"


async def test_a_box_that_is_gone_is_made_again_with_what_was_asked_for(shop: Shop) -> None:
    repository, data = shop.repository(), shop.place("data.csv")
    data.write_text("x\n1\n")
    workspace = shop.workspace()
    await workspace.configure(WorkspaceConfig(repo_url=repository.folder, context_paths=[data]))
    assert workspace.box is not None
    old = workspace.box.id
    await shop.boxes.delete(old)
    done = await workspace.configure(WorkspaceConfig())
    assert workspace.box.id != old
    assert done.kind is Kind.RECREATED
    assert "gone" in done.reason
    assert await sh(workspace.box, "cat a.txt context/data.csv") == "one\nx\n1"


async def test_a_box_that_cannot_be_resumed_is_made_again(shop: Shop) -> None:
    first = shop.workspace("lost")
    await first.configure(WorkspaceConfig())
    assert first.box is not None
    await shop.provider.remove(first.box.id)  # behind the back of the service
    with pytest.raises(BoxGone):
        await first.box.power()
    second = shop.workspace("lost")
    done = await second.configure(WorkspaceConfig())
    assert done.kind is Kind.RECREATED
    assert first.box.id in done.reason


class Unstarting(BoxesHost):
    """Its boxes do not start any more, as on a machine that is short of something."""

    async def acquire(self, key: str, spec: BoxSpec, *, fresh: bool = False) -> AcquiredBox:
        if not fresh:
            raise CreateFailed("the launcher of boxes is gone")
        return await super().acquire(key, spec, fresh=fresh)


async def test_the_files_of_a_box_that_does_not_start_are_kept(shop: Shop) -> None:
    first = shop.workspace("broken")
    await first.configure(WorkspaceConfig(repo_url=shop.repository().folder))
    await sh(first.box, "echo mine > b.txt")
    assert first.box is not None
    await shop.boxes.stop(first.box.id)
    await first.close()
    second = shop.workspace("broken")
    second.host = Unstarting(shop.boxes)
    done = await second.configure(WorkspaceConfig())
    assert (done.kind, done.reason.partition(";")[0]) == (
        Kind.RECREATED,
        "it could not be resumed: the launcher of boxes is gone",
    )
    (snapshot,) = [each for each in await shop.boxes.snapshots() if done.reason.endswith(f"snapshot {each.id}")]
    async with await shop.boxes.open((await shop.boxes.restore(snapshot.id, BoxSpec())).id) as restored:
        assert await sh(restored, "cat b.txt") == "mine"


async def test_force_new_begins_with_another_box(shop: Shop) -> None:
    repository = shop.repository()
    workspace = shop.workspace()
    await workspace.configure(WorkspaceConfig(repo_url=repository.folder))
    await sh(workspace.box, "echo mine > b.txt; touch scratch")
    done = await workspace.configure(WorkspaceConfig(force_new=True))
    assert (done.kind, done.reason) == (Kind.RECREATED, FORCED)
    assert await sh(workspace.box, "cat b.txt; ls") == "same\na.txt\nb.txt"
    assert (await workspace.configure(WorkspaceConfig())).kind is Kind.REUSED, "asked for once"


async def test_another_volume_takes_another_box_and_never_local_changes(shop: Shop) -> None:
    repository = shop.repository()
    workspace = shop.workspace()
    await workspace.configure(WorkspaceConfig(repo_url=repository.folder, volume="first"))
    assert await sh(workspace.box, f"ls {MEMORY}") == "artifacts\nbuffers\nmemory\nmeta"
    await sh(workspace.box, f"echo kept > {MEMORY}/memory/x; echo mine > b.txt")
    same = await workspace.configure(WorkspaceConfig(volume="first"))
    assert same.kind is Kind.REUSED
    with pytest.raises(WorkspaceConflict, match=r"first → second.*b\.txt"):
        await workspace.configure(WorkspaceConfig(volume="second"))
    assert await sh(workspace.box, "cat b.txt") == "mine"
    await sh(workspace.box, "git checkout -q b.txt")
    other = await workspace.configure(WorkspaceConfig(volume="second"))
    assert (other.kind, other.reason) == (Kind.RECREATED, "the volume changed: first → second")
    assert await sh(workspace.box, f"ls {MEMORY}/memory; cat b.txt") == "same"
    await workspace.configure(WorkspaceConfig(volume="first"))
    assert await sh(workspace.box, f"cat {MEMORY}/memory/x") == "kept"


async def test_who_comes_later_with_another_volume_does_not_lose_local_changes(shop: Shop) -> None:
    repository = shop.repository()
    first = shop.workspace("later")
    await first.configure(WorkspaceConfig(repo_url=repository.folder, volume="first"))
    await sh(first.box, "echo mine > b.txt; echo new > notes.txt")
    assert first.box is not None
    old = first.box.id
    await first.close()

    wanted = WorkspaceConfig(repo_url=repository.folder, volume="second")
    for _ in range(2):
        with pytest.raises(WorkspaceConflict, match=r"first → second.*b\.txt, notes\.txt") as raised:
            await shop.workspace("later").configure(wanted)
        assert "force_new" in (raised.value.hint or "")
        await shop.boxes.stop(old)  # it is looked at all the same
    again = shop.workspace("later")
    await again.configure(WorkspaceConfig(repo_url=repository.folder, volume="first"))
    assert again.box is not None
    assert (again.box.id, await sh(again.box, "cat b.txt notes.txt")) == (old, "mine\nnew")

    await sh(again.box, f"git add .; {AS_SOMEBODY} commit -qm mine")
    with pytest.raises(WorkspaceConflict, match="1 commit that is nowhere else"):
        await shop.workspace("later").configure(wanted)
    other = shop.workspace("later")
    done = await other.configure(replace(wanted, force_new=True))
    assert (done.kind, await sh(other.box, "cat b.txt")) == (Kind.RECREATED, "same")


async def test_who_comes_later_with_another_volume_gets_another_box_where_nothing_is_lost(shop: Shop) -> None:
    repository = shop.repository()
    first = shop.workspace("clean")
    await first.configure(WorkspaceConfig(repo_url=repository.folder, volume="first"))
    await first.close()
    second = shop.workspace("clean")
    done = await second.configure(WorkspaceConfig(repo_url=repository.folder, volume="second"))
    assert (done.kind, done.reason) == (Kind.RECREATED, "the volume changed: first → second")
    third = shop.workspace("clean")
    third.spec = BoxSpec(memory=512 << 20)
    await sh(second.box, "echo mine > b.txt")
    with pytest.raises(WorkspaceConflict, match=r"memory .* b\.txt"):
        await third.configure(WorkspaceConfig(repo_url=repository.folder, volume="second"))
    assert await sh(second.box, "cat b.txt") == "mine"


async def test_commits_of_a_repository_that_was_put_aside_are_local_changes(shop: Shop) -> None:
    one, two = shop.repository(), shop.repository()
    workspace = shop.workspace()
    await workspace.configure(WorkspaceConfig(repo_url=one.folder, volume="first"))
    await sh(workspace.box, f"echo mine > b.txt; {AS_SOMEBODY} commit -qam mine")
    await workspace.configure(WorkspaceConfig(repo_url=two.folder))
    with pytest.raises(WorkspaceConflict, match="1 commit that is nowhere else"):
        await workspace.configure(WorkspaceConfig(volume="second"))
    back = await workspace.configure(WorkspaceConfig(repo_url=one.folder))
    assert back.kind is Kind.REUSED
    assert await sh(workspace.box, "cat b.txt") == "mine"


async def test_a_stopped_box_is_looked_at_before_another_takes_its_place(shop: Shop) -> None:
    repository = shop.repository()
    workspace = shop.workspace()
    await workspace.configure(WorkspaceConfig(repo_url=repository.folder, volume="first"))
    await sh(workspace.box, "echo mine > b.txt")
    assert workspace.box is not None
    await shop.boxes.stop(workspace.box.id)
    with pytest.raises(WorkspaceConflict, match=r"first → second.*b\.txt"):
        await workspace.configure(WorkspaceConfig(volume="second"))


async def test_a_new_box_gets_in_the_end_what_it_did_not_get_at_once(shop: Shop) -> None:
    repository = shop.repository()
    workspace = shop.workspace()
    await workspace.configure(WorkspaceConfig(repo_url=repository.folder))
    away = repository.folder.with_name("away")
    repository.folder.rename(away)
    repository.folder.mkdir()
    with pytest.raises(WorkspaceFailed, match="not a git repository"):
        await workspace.configure(WorkspaceConfig(force_new=True))
    repository.folder.rmdir()
    away.rename(repository.folder)
    done = await workspace.configure(WorkspaceConfig())
    assert done.kind is Kind.REUSED
    assert await sh(workspace.box, "cat a.txt") == "one"


async def test_set_up_is_done_again_after_each_change_in_the_box_that_lives_on(shop: Shop) -> None:
    repository, seen = shop.repository(), list[tuple[str, str]]()

    async def set_up(box: Box) -> None:
        seen.append((box.id, await sh(box, "cat a.txt 2>/dev/null || echo none")))

    workspace = shop.workspace(on_change=set_up)
    await workspace.configure(WorkspaceConfig())
    assert workspace.box is not None
    process = await workspace.box.spawn(("sleep", "600"))
    await workspace.configure(WorkspaceConfig(repo_url=repository.folder))
    repository.commit("second", a_txt="two\n")
    await workspace.configure(WorkspaceConfig(repo_url=repository.folder))
    id = workspace.box.id
    assert seen == [(id, "none"), (id, "one"), (id, "two")]
    assert (await process.info()).state == "running", "what is in memory stays"
    await process.kill()


async def test_what_makes_no_sense_is_refused_before_there_is_a_box(shop: Shop) -> None:
    workspace = shop.workspace()
    for wrong in (
        WorkspaceConfig(ref="main"),
        WorkspaceConfig(repo_url="/nowhere"),
        WorkspaceConfig(repo_url="https://u:p@example.com/x"),
        WorkspaceConfig(context_paths=["/nowhere"]),
        WorkspaceConfig(repo_url="https://example.com/x", ref="--x"),
    ):
        with pytest.raises(InvalidInterpreter):
            await workspace.configure(wrong)
    assert workspace.box is None


async def test_an_image_without_git_says_what_to_do(shop: Shop) -> None:
    from tests.providers.local.rootfs import busybox, pieces

    await shop.provider.images.import_archive("test/busybox", pieces(busybox().done()))
    workspace = shop.workspace()
    workspace.spec = BoxSpec(image="test/busybox")
    with pytest.raises(WorkspaceFailed, match="cannot run git") as raised:
        await workspace.configure(WorkspaceConfig(repo_url=shop.repository().folder))
    assert "template" in (raised.value.hint or "")


async def test_a_git_of_the_box_that_counts_nonsense_is_an_error_of_the_workspace() -> None:
    class Lying:
        id = "b-lying"

        async def exec(self, argv: tuple[str, ...], **_: Any) -> Completed:
            return Completed(0, b"" if "rev-parse" in argv else b"9" * 5000 + b"\x1b[2J", b"")

    with pytest.raises(WorkspaceFailed, match="printed no number: '99"):
        await _Git(cast("Box", Lying()), "/workspace").count_local_commits()
