"""What ranks run in tests, each called with its rank, the size and the store's port.

Each prints JSON lines for the test that started it.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from functools import reduce
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import netfold


def tell(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


def wait_for_word() -> str:
    """Until the test says something."""
    return sys.stdin.readline().strip()


def begin(rank: int, size: int, port: int, timeout_s: float | None = None) -> None:
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    timeout = None if timeout_s is None else timedelta(seconds=timeout_s)
    dist.init_process_group("netfold", store=store, rank=rank, world_size=size, timeout=timeout)


def attempt(action: Callable[[], Any]) -> dict[str, Any]:
    """Runs it; what it raised, and when."""
    started = time.monotonic()
    facts: dict[str, Any] = {"error": "", "code": "", "text": "", "ranks": []}
    try:
        action()
    except Exception as error:
        facts.update(error=type(error).__name__, text=str(error))
        if isinstance(error, netfold.NetfoldError):
            facts.update(code=error.code, ranks=list(error.ranks), sequence=error.sequence)
    facts["seconds"] = time.monotonic() - started
    return facts


def reduce_all(rank: int, size: int, port: int, racks: str) -> None:
    """Every dtype and op gloo has, natively or not, against plain arithmetic."""
    begin(rank, size, port)
    for dtype, ops in REDUCTIONS.items():
        inputs = [draw_numbers(r, dtype) for r in range(size)]
        for op in ops:
            tensor = inputs[rank].clone()
            dist.all_reduce(tensor, op=op)
            expected = folded(inputs, op, int(racks))
            assert torch.equal(bits_of(tensor), bits_of(expected)), (dtype, op)
    refused = attempt(lambda: dist.all_reduce(torch.ones(3).to(torch.int32), dist.ReduceOp.AVG))
    tell(paths=netfold.report()["paths"], refused=refused)
    dist.destroy_process_group()


Op = dist.ReduceOp
FLOAT_OPS = (Op.SUM, Op.AVG, Op.MIN, Op.MAX, Op.PRODUCT)
INTEGER_OPS = (Op.SUM, Op.MIN, Op.MAX, Op.PRODUCT, Op.BAND, Op.BOR, Op.BXOR)
REDUCTIONS = {
    **dict.fromkeys((torch.float16, torch.bfloat16, torch.float32, torch.float64), FLOAT_OPS),
    **dict.fromkeys((torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64), INTEGER_OPS),
    torch.bool: INTEGER_OPS,
}


def draw_numbers(rank: int, dtype: torch.dtype) -> torch.Tensor:
    """Any integers; floats of several magnitudes, so that another order has other bits."""
    generator = torch.Generator().manual_seed(rank)
    if dtype.is_floating_point:
        scale = torch.exp2(torch.randint(-6, 3, (4001,), generator=generator).double())
        return (torch.randn(4001, generator=generator, dtype=torch.float64) * scale).to(dtype)
    raw = torch.randint(-(2**62), 2**62, (4001,), generator=generator)
    return raw > 0 if dtype == torch.bool else raw.to(dtype)


def folded(inputs: list[torch.Tensor], op: Any, racks: int = 1) -> torch.Tensor:
    """In rank order, within each rack first; 16-bit floats as float32, rounded once at the end."""
    dtype = inputs[0].dtype
    wide = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
    any_of = {Op.SUM: torch.logical_or, Op.MAX: torch.logical_or, Op.BOR: torch.logical_or}
    all_of = {Op.PRODUCT: torch.logical_and, Op.MIN: torch.logical_and, Op.BAND: torch.logical_and}
    numbers: dict[Any, Any] = {
        Op.SUM: torch.add,
        Op.AVG: torch.add,
        Op.MIN: torch.minimum,
        Op.MAX: torch.maximum,
        Op.PRODUCT: torch.mul,
        Op.BAND: torch.bitwise_and,
        Op.BOR: torch.bitwise_or,
        Op.BXOR: torch.bitwise_xor,
    }
    step = ({**numbers, **any_of, **all_of} if dtype == torch.bool else numbers)[op]
    wider = [tensor.to(wide) for tensor in inputs]
    total = reduce(step, (reduce(step, wider[rack::racks]) for rack in range(racks)))
    return (total / len(inputs) if op == Op.AVG else total).to(dtype)


def bits_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(torch.uint8)


def fixed(rank: int, size: int, port: int) -> None:
    """T37, T44: NETFOLD_MODE=fixed32 within its bound, the same bits everywhere and again."""
    begin(rank, size, port)
    inputs = [draw_numbers(r, torch.float32) for r in range(size)]
    for block in inputs:
        block[::97] *= 1e-30  # tiny ones beside those of 1
        block[::256] = 1e20
    inputs[-1][300] = torch.nan
    inputs[0][700] = torch.inf
    inputs[-1][700] = -torch.inf
    inputs[0][701] = -torch.inf
    results = []
    for _ in range(2):
        tensor = inputs[rank].clone()
        works = [dist.all_reduce(torch.ones(n), async_op=True) for n in (1, 3000)]
        dist.all_reduce(tensor)
        works[1].wait()
        works[0].wait()
        results.append(tensor)
    average = inputs[rank].clone()
    dist.all_reduce(average, op=Op.AVG)
    gathered = [torch.empty_like(tensor) for _ in range(size)]
    dist.all_gather(gathered, tensor)
    exact = torch.stack([x.double() for x in inputs]).sum(0)
    finite = exact.isfinite()
    largest = torch.stack(inputs).nan_to_num(0, 0, 0).abs().amax(0)
    bound = torch.zeros_like(exact)
    for first in range(0, exact.numel(), 256):  # a block
        power = torch.ceil(torch.log2(largest[first : first + 256].max().double()))
        bound[first : first + 256] = size * torch.exp2(power + (size - 1).bit_length() - 31)
    off = (tensor.double() - exact).abs()[finite]
    allowed = (bound + exact.abs() * 2.0**-24)[finite]
    tell(
        same=all(torch.equal(bits_of(tensor), bits_of(g)) for g in (*gathered, results[0])),
        within=bool((off <= allowed).all()),
        average=torch.equal(average[finite], (tensor / size)[finite]),
        special=[tensor[300].item(), tensor[700].item(), tensor[701].item()],
        paths=netfold.report()["paths"],
    )
    dist.destroy_process_group()


def shapes(rank: int, size: int, port: int) -> None:
    """T32, T38, T43: layouts that are not contiguous, empty tensors, bit equality."""
    begin(rank, size, port)
    base = torch.arange(24.0).view(2, 3, 4)
    views = {
        "strided": torch.arange(40.0)[::4],
        "transposed": base.clone().transpose(0, 2),
        "channels last": torch.arange(48.0).view(1, 3, 4, 4).to(memory_format=torch.channels_last),
        "slice": torch.arange(100.0).view(10, 10)[2:7, 3:8],
    }
    for name, view in views.items():
        before = view.clone()
        dist.all_reduce(view)
        assert torch.equal(view, before * size), name
    outside = torch.arange(40.0)
    dist.all_reduce(outside[::4])
    assert outside[1].item() == 1.0
    refused = attempt(lambda: dist.all_reduce(torch.ones(1).expand(5)))
    empty = torch.empty(0)
    dist.all_reduce(empty)
    dist.all_reduce(torch.ones(()))
    torch.manual_seed(rank)
    noise = torch.randn(100_003)
    dist.all_reduce(noise)
    gathered = [torch.empty_like(noise) for _ in range(size)]
    dist.all_gather(gathered, noise)
    same = all(torch.equal(noise.view(torch.int32), g.view(torch.int32)) for g in gathered)
    tell(refused=refused, same=same)
    dist.destroy_process_group()


def collectives(rank: int, size: int, port: int) -> None:
    """What is not all-reduce works through gloo; asynchronous, coalesced and future forms."""
    begin(rank, size, port)
    work = dist.all_reduce(torch.ones(1000), async_op=True)
    assert work.wait(timedelta(seconds=20))
    assert work.is_completed()
    assert work.is_success()
    tensor = torch.full((10,), float(rank))
    future = dist.all_reduce(tensor, async_op=True).get_future()
    doubled = future.then(lambda f: f.value()[0] * 2).wait()
    assert doubled[0].item() == size * (size - 1)
    many = [torch.full((n,), float(rank + 1)) for n in (1, 1000, 33)]
    works = [dist.all_reduce(one, async_op=True) for one in many]
    for one in reversed(works):
        one.wait()
    assert all(one[0].item() == size * (size + 1) / 2 for one in many)
    with dist._coalescing_manager():
        for one in many:
            dist.all_reduce(one)
    assert many[2][5].item() == size * size * (size + 1) / 2
    check_delegated(rank, size)
    check_groups(rank, size)
    tell(ok=True)
    dist.destroy_process_group()


def check_delegated(rank: int, size: int) -> None:
    tensor = torch.full((5,), float(rank))
    dist.broadcast(tensor, src=size - 1)
    assert tensor[0].item() == size - 1
    target = torch.full((4,), float(rank + 1))
    dist.reduce(target, dst=0)
    # T42: who is no target keeps what it had.
    assert target[0].item() == (size * (size + 1) / 2 if rank == 0 else rank + 1)
    parts = [torch.empty(2) for _ in range(size)]
    dist.all_gather(parts, torch.full((2,), float(rank)))
    assert [part[0].item() for part in parts] == list(range(size))
    joined = torch.empty(2 * size)
    dist.all_gather_into_tensor(joined, torch.full((2,), float(rank)))
    assert joined[-1].item() == size - 1
    shard = torch.empty(2)
    dist.reduce_scatter_tensor(shard, torch.ones(2 * size))
    assert shard[0].item() == size
    swapped = torch.empty(size)
    dist.all_to_all_single(swapped, torch.full((size,), float(rank)))
    assert swapped.tolist() == list(range(size))
    if rank == 0:
        dist.send(torch.ones(3) * 7, dst=1)
    elif rank == 1:
        got = torch.empty(3)
        dist.recv(got, src=0)
        assert got[0].item() == 7
    objects: list[Any] = [None] * size
    dist.all_gather_object(objects, {"rank": rank})
    assert objects[-1] == {"rank": size - 1}
    dist.barrier()


def check_groups(rank: int, size: int) -> None:
    """Subgroups are independent (T39 for a group of one)."""
    alone = [dist.new_group([r]) for r in range(size)][rank]
    one = torch.ones(3)
    dist.all_reduce(one, group=alone)
    assert one[0].item() == 1
    pair = dist.new_group([0, 1])
    if rank < 2:
        two = torch.ones(5000)
        dist.all_reduce(two, group=pair)
        assert two[0].item() == 2
        dist.destroy_process_group(pair)
    everybody = torch.ones(3)
    dist.all_reduce(everybody)
    assert everybody[0].item() == size


def train(rank: int, size: int, port: int) -> None:
    """DDP gives what one process gives on the whole batch."""
    begin(rank, size, port)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(20, 50), torch.nn.ReLU(), torch.nn.Linear(50, 3))
    alone = torch.nn.Sequential(torch.nn.Linear(20, 50), torch.nn.ReLU(), torch.nn.Linear(50, 3))
    alone.load_state_dict(model.state_dict())
    parallel = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.002)
    batch, target = torch.randn(8 * size, 20), torch.randn(8 * size, 3)
    mine = slice(8 * rank, 8 * rank + 8)
    optimizers = [torch.optim.SGD(m.parameters(), 0.1) for m in (parallel, alone)]
    for _ in range(5):
        for net, optimizer, rows in (
            (parallel, optimizers[0], mine),
            (alone, optimizers[1], slice(None)),
        ):
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(net(batch[rows]), target[rows]).backward()
            optimizer.step()
    pairs = zip(model.parameters(), alone.parameters(), strict=True)
    worst = max((a - b).abs().max().item() for a, b in pairs)
    paths = netfold.report()["paths"]
    tell(worst=worst, switch=paths["switch"]["collectives"] if "switch" in paths else 0)
    dist.destroy_process_group()


def disagree(rank: int, size: int, port: int, kind: str) -> None:
    """The last rank calls something else (T11, T12)."""
    begin(rank, size, port)
    dist.all_reduce(torch.ones(3))
    odd = rank == size - 1
    tensor = torch.ones(1000 + (odd and kind == "numel"))
    if odd and kind == "dtype":
        tensor = tensor.to(torch.int32)
    op = dist.ReduceOp.MAX if odd and kind == "op" else dist.ReduceOp.SUM
    if odd and kind == "path":
        first = attempt(lambda: dist.broadcast(tensor, src=0))
    else:
        first = attempt(lambda: dist.all_reduce(tensor, op=op))
    later = attempt(lambda: dist.all_reduce(torch.ones(3)))
    tell(**first, later=later["code"])
    dist.destroy_process_group()


def lose(rank: int, size: int, port: int, what: str) -> None:
    """The last rank ends or stops while the others reduce; the switch may die too."""
    begin(rank, size, port)
    dist.all_reduce(torch.ones(3))
    tell(process=os.getpid())
    if rank == size - 1 and what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if rank == size - 1 and what == "leave":
        dist.destroy_process_group()
        return
    if rank == size - 1 and what == "freeze":
        os.kill(os.getpid(), signal.SIGSTOP)
    if what == "switch":
        wait_for_word()
    tell(**attempt(lambda: dist.all_reduce(torch.ones(100_000))))
    tell(**attempt(dist.destroy_process_group))


def lose_in_gloo(rank: int, size: int, port: int, number: str) -> None:
    """The last rank gets a signal while the others are in a collective that gloo carries."""
    begin(rank, size, port)
    dist.barrier()
    if rank == size - 1:
        os.kill(os.getpid(), int(number))
    found = [torch.zeros(1000) for _ in range(size)]
    tell(**attempt(lambda: dist.all_gather(found, torch.ones(1000))))
    tell(**attempt(dist.destroy_process_group))


def lose_ddp(rank: int, size: int, port: int) -> None:
    """Under DDP torch hides the type; the code is in the text and the error on the group."""
    begin(rank, size, port)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(100, 10))
    for _ in range(3):  # torch arranges its buckets, by way of gloo, before the third
        model(torch.ones(2, 100)).sum().backward()
    loss = model(torch.ones(2, 100)).sum()
    if rank == size - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    facts = attempt(loss.backward)
    last = dist.group.WORLD.last_error  # type: ignore[union-attr]
    tell(**facts, last=getattr(last, "code", ""))


def out_of_time(rank: int, size: int, port: int, which: str) -> None:
    """T19, T20: rank 1 never comes; whose timeout counts?"""
    begin(rank, size, port)  # with all the time that takes
    dist.all_reduce(torch.ones(3))
    if rank == 1:
        wait_for_word()
        tell(**attempt(lambda: dist.all_reduce(torch.ones(3))))
        return
    group: Any = dist.group.WORLD
    if which != "wait":
        group.set_timeout(timedelta(seconds=3))
    options = dist.AllreduceOptions()
    if which == "operation":
        options.timeout = timedelta(seconds=0.5)

    def submit_and_wait() -> None:  # the time runs from the submission
        work = group.allreduce([torch.ones(1000)], options)
        work.wait(timedelta(seconds=0.7)) if which == "wait" else work.wait()

    tell(**attempt(submit_and_wait))
    wait_for_word()
    dist.destroy_process_group()


def miss_one(rank: int, size: int, port: int, missing: str) -> None:
    """One rank is late for longer than the others wait."""
    begin(rank, size, port)
    dist.all_reduce(torch.ones(3))
    if rank == int(missing):
        wait_for_word()
        return
    options = dist.AllreduceOptions()
    options.timeout = timedelta(seconds=4)
    group: Any = dist.group.WORLD
    tell(**attempt(lambda: group.allreduce([torch.ones(100_000)], options).wait()))


def misconfigured(rank: int, size: int, port: int, setting: str) -> None:
    """T31: rank 1 alone has `setting`; all hear of it at once."""
    if rank == 1:
        name, _, value = setting.partition("=")
        os.environ[name] = value
    tell(**attempt(lambda: begin(rank, size, port)))


def give_up(rank: int, size: int, port: int) -> None:
    """T20, T22, T17: abort breaks the group for all; shutdown and abort in any order, twice."""
    begin(rank, size, port)
    dist.all_reduce(torch.ones(3))
    group: Any = dist.group.WORLD
    if rank == 0:
        group.abort()
        group.abort()
    tell(**attempt(lambda: dist.all_reduce(torch.ones(1000))))
    group.shutdown()
    group.shutdown()
    group.abort()
    tell(**attempt(dist.destroy_process_group))


def drop(rank: int, size: int, port: int) -> None:
    """T17, T24: a Work nobody keeps, and destroy with work in flight."""
    begin(rank, size, port)
    for _ in range(50):
        dist.all_reduce(torch.ones(10_000), async_op=True)
    last = torch.ones(1000)
    dist.all_reduce(last)
    if rank == 0:
        held = dist.all_reduce(torch.ones(1000), async_op=True)
        ended = attempt(dist.destroy_process_group)
        tell(ok=last[0].item() == size, destroy=ended, held=attempt(held.wait))
    else:
        tell(ok=last[0].item() == size)
        wait_for_word()


def form(rank: int, size: int, port: int) -> None:
    """Only what forming a group says and takes."""
    timeout_s = float(os.environ.get("TEST_TIMEOUT_S", "30"))
    tell(**attempt(lambda: begin(rank, size, port, timeout_s)))


def steps(rank: int, size: int, port: int, count: str) -> None:
    """Reductions with known sums, a word from the test before the second half."""
    begin(rank, size, port)
    for step in range(int(count)):
        if step == int(count) // 2:
            tell(half=True)
            wait_for_word()
        tensor = torch.full((20_000,), float(rank + step))
        dist.all_reduce(tensor)
        assert tensor[-1].item() == size * step + size * (size - 1) / 2
    group: Any = dist.group.WORLD
    tell(counters=group._member.endpoint.counters())
    dist.destroy_process_group()


def endure(rank: int, size: int, port: int) -> None:
    """Says when it reduces, for the test to restart the switch meanwhile; a digest of all sums."""
    begin(rank, size, port)
    generator = torch.Generator().manual_seed(rank)
    digest = hashlib.sha256()
    for step in range(30):
        if step in (5, 15):
            tell(running=True)
        tensor = torch.rand(1_000_000, generator=generator)
        dist.all_reduce(tensor)
        digest.update(tensor.numpy().tobytes())
    group: Any = dist.group.WORLD
    tell(digest=digest.hexdigest(), resyncs=group._member.endpoint.counters()["resyncs"])
    dist.destroy_process_group()


def listen(rank: int, size: int, port: int) -> None:
    """T07: which TCP ports this process listens on, with several groups formed."""
    begin(rank, size, port)
    groups = [dist.new_group(list(range(size))) for _ in range(2)]
    for group in groups:
        dist.all_reduce(torch.ones(10), group=group)
        dist.broadcast(torch.ones(10), src=0, group=group)
    descriptors = [path for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    mine = {str(path.readlink()) for path in descriptors if os.path.lexists(path)}
    rows = [row.split() for row in Path("/proc/self/net/tcp").read_text().splitlines()[1:]]
    listening = [row[1] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in mine]
    tell(ports=[int(address.rpartition(":")[2], 16) for address in listening], store=port)
    dist.destroy_process_group()


def huge(rank: int, size: int, port: int) -> None:
    """T40: more than 2^31 bytes; offsets are 64 bits wide."""
    begin(rank, size, port)
    tensor = torch.full(((1 << 29) + 3,), rank + 1, dtype=torch.int32)
    dist.all_reduce(tensor)
    ends = [tensor[0].item(), tensor[1 << 28].item(), tensor[-1].item()]
    tell(ends=ends, same=bool((tensor == 3).all()))
    dist.destroy_process_group()


def main(name: str, rank: str, size: str, port: str, *arguments: str) -> None:
    globals()[name](int(rank), int(size), int(port), *arguments)
