"""How many threads, and on which CPUs: known machines, then properties of all."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refectory_server.runner.cpu_placement import (
    CpuPlacement,
    HostCpus,
    default_num_threads,
    format_cpu_list,
    place_threads,
)
from refectory_server.runner.host_limits import parse_cpu_list


def host(
    cpus: str,
    *,
    num_online: int = 64,
    quota: float | None = None,
    num_cores: int | None = None,
    cpus_a_node: int = 1000,
) -> HostCpus:
    """CPU i and CPU i + num_cores are siblings, as Linux numbers them; None: no siblings."""
    numbers = parse_cpu_list(cpus)
    return HostCpus(
        cpus=numbers,
        num_online=num_online,
        quota=quota,
        core_of={cpu: cpu % (num_cores or num_online) for cpu in numbers},
        node_of={cpu: cpu % (num_cores or num_online) // cpus_a_node for cpu in numbers},
    )


@pytest.mark.parametrize(
    ("quota", "expected"),
    [
        (None, 32),
        (0.1, 1),
        (1.0, 1),
        (1.5, 1),
        (1.999, 1),
        (2.0, 2),
        (7.5, 7),
        (32.0, 32),
        (48.0, 32),
        (1000.0, 32),
    ],
)
def test_a_thread_a_core_and_never_more_than_the_quota_has_whole_cpus(
    quota: float | None, expected: int
) -> None:
    assert default_num_threads(host("0-63", quota=quota, num_cores=32)) == expected


@pytest.mark.parametrize(
    ("machine", "num_threads", "threads", "spare"),
    [
        # A whole machine, alone or shared: nobody else is kept off it, so nothing is bound.
        (host("0-63", num_cores=32), None, (None,) * 32, ()),
        (host("0-1", num_online=2), None, (None, None), ()),
        # A CPU limit on a node whose CPUs are shared.
        (host("0-63", quota=4.0, num_cores=32), None, (None,) * 4, ()),
        (host("8-63", quota=4.0, num_cores=32), None, (None,) * 4, ()),
        # A cpuset of one's own: whole cores, their siblings for everything else.
        (host("4-7,36-39", quota=8.0, num_cores=32), None, (4, 5, 6, 7), (36, 37, 38, 39)),
        (host("4-7,36-39", num_cores=32), None, (4, 5, 6, 7), (36, 37, 38, 39)),
        # Fewer threads than cores: the idle cores are spare, not the siblings.
        (host("4-7,36-39", num_cores=32), 3, (4, 5, 6), (7, 39)),
        # More threads than cores.
        (host("4-7,36-39", num_cores=32), 6, (4, 5, 6, 7, 36, 37), (38, 39)),
        # Nothing is left over.
        (host("4-7,36-39", num_cores=32), 8, (None,) * 8, ()),
        (host("4-7"), None, (None,) * 4, ()),
        (host("4-7"), 3, (4, 5, 6), (7,)),
        (host("5"), None, (None,), ()),
        # The node that has more of the cores comes first.
        (host("6-11", cpus_a_node=8), 3, (8, 9, 10), (6, 7, 11)),
        (host("6-11", cpus_a_node=8), 5, (8, 9, 10, 11, 6), (7,)),
    ],
)
def test_placements(
    machine: HostCpus,
    num_threads: int | None,
    threads: tuple[int | None, ...],
    spare: tuple[int, ...],
) -> None:
    assert place_threads(machine, num_threads) == CpuPlacement(threads, spare)


@pytest.mark.parametrize("num_threads", [-1, 0, 5, 10**9])
def test_a_number_out_of_range_is_named_with_the_range(num_threads: int) -> None:
    with pytest.raises(ValueError, match=rf"^{num_threads}; allowed is \[1, 4\], the CPUs"):
        place_threads(host("4-7"), num_threads)


@pytest.mark.parametrize(
    ("placement", "text"),
    [
        (CpuPlacement((None,)), "1 thread not bound to CPUs"),
        (CpuPlacement((None, None)), "2 threads not bound to CPUs"),
        (CpuPlacement((4, 5, 6, 9), (7,)), "4 threads on CPUs 4-6,9"),
    ],
)
def test_text(placement: CpuPlacement, text: str) -> None:
    assert str(placement) == text


@st.composite
def machines(draw: st.DrawFn) -> HostCpus:
    num_online = draw(st.integers(1, 24))
    every = range(num_online)
    cores = draw(st.lists(st.integers(0, 11), min_size=num_online, max_size=num_online))
    nodes = draw(st.lists(st.integers(0, 3), min_size=12, max_size=12))
    return HostCpus(
        cpus=draw(st.frozensets(st.sampled_from(every), min_size=1)),
        num_online=num_online,
        quota=draw(st.none() | st.floats(0.01, 40)),
        core_of=dict(zip(every, cores, strict=True)),
        node_of={cpu: nodes[cores[cpu]] for cpu in every},
    )


@given(machines(), st.data())
def test_placements_of_any_machine(machine: HostCpus, data: st.DataObject) -> None:
    num_threads = data.draw(st.none() | st.integers(1, len(machine.cpus)))
    placement = place_threads(machine, num_threads)
    bound = [cpu for cpu in placement.threads if cpu is not None]
    assert len(placement.threads) == (num_threads or default_num_threads(machine))
    assert bool(bound) == bool(placement.spare_cpus)
    if not bound:
        return
    assert machine.is_exclusive
    assert len(machine.cpus) < machine.num_online
    assert len(set(bound)) == len(placement.threads)
    assert set(bound) <= machine.cpus
    assert set(placement.spare_cpus) <= machine.cpus - set(bound)
    assert list(placement.spare_cpus) == sorted(set(placement.spare_cpus))
    busy_cores = {machine.core_of[cpu] for cpu in bound}
    assert len(busy_cores) == min(len(bound), machine.num_cores)
    is_shared = busy_cores & {machine.core_of[cpu] for cpu in placement.spare_cpus}
    assert not is_shared or len(busy_cores) == machine.num_cores


@given(machines())
def test_the_default_stays_below_cores_and_quota(machine: HostCpus) -> None:
    num_threads = default_num_threads(machine)
    assert 1 <= num_threads <= machine.num_cores
    if num_threads > 1 and machine.quota is not None:
        assert num_threads <= machine.quota


@given(st.frozensets(st.integers(0, 200)))
def test_lists_are_read_as_they_are_written(cpus: frozenset[int]) -> None:
    assert parse_cpu_list(format_cpu_list(cpus)) == cpus
