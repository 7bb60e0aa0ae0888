"""What users get wrong in files: one message each, with the file, the line and key where there is one, and what was
allowed. A case is one row; any reader of a file can have rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.cluster import cluster
from planner.errors import BadInput
from planner.plan import yaml as plan_yaml
from planner.profile import yaml as profile_yaml
from tests.planner import plan_examples as examples

CLUSTER = """\
version: 1
name: two nodes
nodes:
  - count: 2
    device: A100-40GB
    devices_per_node: 8
    margin_bytes: 1000000000
    devices_per_card: 2
links:
  node: {latency_s: 4.0e-6, bandwidth_bytes_per_s: 3.0e+11}
  rack: {latency_s: 5.0e-6, bandwidth_bytes_per_s: 2.5e+10}
"""
PLAN = plan_yaml.dump(examples.plan(family="chimera"))
PROFILE = profile_yaml.dumps(examples.profile((1,)))
TEXTS = {"cluster": CLUSTER, "plan": PLAN, "profile": PROFILE}
READERS: dict[str, Callable[[Path], object]] = {
    "cluster": cluster.load,
    "plan": plan_yaml.load,
    "profile": profile_yaml.load,
}


@dataclass(frozen=True)
class Case:
    name: str
    read: Callable[[Path], object]
    content: str | bytes
    said: tuple[str, ...]  # all of these stand in the message
    file: str = "given.yaml"


def line_of(text: str, start: str) -> int:
    return text[: text.index(start)].count("\n") + 1


def spoilt(kind: str, name: str, old: str, new: str, *said: str) -> Case:
    """A right file with one passage replaced; the message names the line where the new passage begins."""
    text = TEXTS[kind]
    assert text.count(old) >= 1, f"{old!r} is not in the {kind}"
    return Case(name, READERS[kind], text.replace(old, new, 1), (f":{line_of(text, old)}: ", *said))


def whole(kind: str, name: str, content: str | bytes, *said: str) -> Case:
    return Case(name, READERS[kind], content, said)


def in_every_kind(name: str, content: str | bytes, *said: str) -> list[Case]:
    return [whole(kind, f"{kind}: {name}", content, *said) for kind in READERS]


NO_YAML = [
    *in_every_kind("an empty file", "", "holds nothing", "a mapping"),
    *in_every_kind("only comments", "# to do\n# later\n", "holds nothing", "a mapping"),
    *in_every_kind("a list", "- version: 1\n", "holds a list", "a mapping"),
    *in_every_kind("a lone word", "hello\n", "holds only 'hello'", "a mapping"),
    *in_every_kind("an unclosed bracket", "version: [1\nname: x\n", "given.yaml:2: not YAML", "YAML 1.2"),
    *in_every_kind("a tab", "version: 1\nnodes:\n\t- count: 1\n", "given.yaml:3: a tab", "blanks"),
    *in_every_kind(
        "bytes of a picture", b"\x89PNG\r\n\x1a\n\x00\xff", "given.yaml:1: byte 0 is not text", "UTF-8"
    ),
    *in_every_kind("UTF-16", "version: 1\n".encode("utf-16"), "given.yaml:1: byte 0 is not text", "UTF-8"),
    *in_every_kind(
        "Latin-1", "version: 1\nname: Zürich".encode("latin-1"), ":2: byte 18 is not text", "UTF-8"
    ),
    *in_every_kind("a null byte", "version: 1\nname: a\0b\n", ":2: not YAML", "printable text"),
    *in_every_kind("two documents", "version: 1\n---\nversion: 1\n", ":2: a second document", "one document"),
    *in_every_kind("a key twice", "version: 1\nname: a\nversion: 1\n", ":3: the key 'version' stands twice"),
    *in_every_kind("an alias", "version: 1\na: &a [1]\nb: *a\n", ":2: an anchor or alias is not read"),
    *in_every_kind("a merge", "version: 1\na: {<<: *base}\n", ":2: an anchor or alias is not read"),
    *in_every_kind("a list as a key", "version: 1\n? [1, 2]\n: 3\n", ":2: a list", "a name"),
    *in_every_kind(
        "a call of python",
        "version: 1\nname: !!python/object/apply:os.system [touch spoor]\n",
        ":2: the tag 'tag:yaml.org,2002:python/object/apply:os.system' is not read",
        "without tags",
    ),
    *in_every_kind(
        "an object of python", "!!python/object:planner.plan.Plan {}\n", ":1: the tag", "without tags"
    ),
    *in_every_kind(
        "a tag of our own", "version: 1\nname: !shell ls\n", ":2: the tag '!shell'", "without tags"
    ),
    *in_every_kind(
        "a hundred levels", f"version: 1\na: {'[' * 100}{']' * 100}\n", ":2: nested too deep", "64"
    ),
    *in_every_kind(
        "an endless number", f"version: 1\na: {'9' * 5000}\n", ":2: a number is too long", "40 digits"
    ),
    *in_every_kind("no version", "name: x\n", "version"),
    *in_every_kind("a version from the future", "version: 3\nname: x\n", ":1: version", "3", "1"),
    *in_every_kind("a version of text", "version: '1'\nname: x\n", ":1: version", "'1'"),
    *in_every_kind("a version before the first", "version: 0\nname: x\n", ":1: version", "0"),
    *in_every_kind("a version that is true", "version: true\nname: x\n", ":1: version"),
]

CLUSTERS = [
    spoilt(
        "cluster",
        "an unknown key",
        "- count",
        "- number",
        "nodes[0].number: unknown key",
        "count, device",
    ),
    spoilt(
        "cluster",
        "an unknown key on top",
        "name: two",
        "title: two",
        "unknown key 'title'",
        "name, nodes, links",
    ),
    spoilt(
        "cluster",
        "a key of another unit",
        "margin_bytes: 1000000000",
        "margin_gib: 1",
        "unknown key",
        "margin_bytes",
    ),
    spoilt(
        "cluster",
        "an unknown device",
        "A100-40GB",
        "A1000",
        "nodes[0].device: unknown device 'A1000'",
        "A100-40GB, ",
    ),
    spoilt(
        "cluster", "a device without a name", "A100-40GB", "''", "nodes[0].device: '' does not fit", "text"
    ),
    spoilt(
        "cluster",
        "a device that is a number",
        "A100-40GB",
        "100",
        "nodes[0].device: 100 does not fit",
        "text",
    ),
    spoilt(
        "cluster",
        "no nodes at all",
        CLUSTER[CLUSTER.index("nodes:") : CLUSTER.index("links:")],
        "nodes: []\n",
        "nodes: [] does not fit",
        "a list",
    ),
    spoilt(
        "cluster",
        "zero nodes",
        "count: 2",
        "count: 0",
        "nodes[0].count: 0 does not fit",
        "a whole number >= 1",
    ),
    spoilt("cluster", "minus two nodes", "count: 2", "count: -2", "nodes[0].count: -2 does not fit", ">= 1"),
    spoilt(
        "cluster",
        "half a node",
        "count: 2",
        "count: 1.5",
        "nodes[0].count: 1.5 does not fit",
        "a whole number",
    ),
    spoilt(
        "cluster",
        "nodes in words",
        "count: 2",
        "count: two",
        "nodes[0].count: 'two' does not fit",
        "a whole number",
    ),
    spoilt(
        "cluster",
        "a quoted number",
        "count: 2",
        "count: '2'",
        "nodes[0].count: '2' does not fit",
        "a whole number",
    ),
    spoilt("cluster", "an octal number", "count: 2", "count: 010", "nodes[0].count: '010' does not fit"),
    spoilt(
        "cluster", "more nodes than atoms", "count: 2", "count: 9999999999", "nodes[0].count", "<= 1000000"
    ),
    spoilt(
        "cluster",
        "count: yes",
        "count: 2",
        "count: true",
        "nodes[0].count: true does not fit",
        "a whole number",
    ),
    spoilt(
        "cluster",
        "no devices",
        "devices_per_node: 8",
        "devices_per_node: 0",
        "devices_per_node: 0 does not fit",
    ),
    spoilt(
        "cluster",
        "a value left out",
        "devices_per_node: 8",
        "devices_per_node:",
        "devices_per_node: null does not fit",
    ),
    spoilt(
        "cluster",
        "a negative memory",
        "margin_bytes: 1000000000",
        "memory_bytes: -1",
        "memory_bytes: -1 does not fit",
        ">= 1",
    ),
    spoilt(
        "cluster",
        "a memory with its unit",
        "margin_bytes: 1000000000",
        "memory_bytes: 40 GiB",
        "'40 GiB' does not fit",
    ),
    spoilt(
        "cluster",
        "memory that is not a number",
        "margin_bytes: 1000000000",
        "memory_bytes: .nan",
        "nan does not fit",
    ),
    spoilt(
        "cluster",
        "a margin that leaves nothing",
        "margin_bytes: 1000000000",
        "margin_bytes: 40000000000",
        "margin_bytes: 40000000000 leaves no memory",
        "less than 40000000000",
    ),
    spoilt(
        "cluster",
        "a card for more than there are",
        "devices_per_card: 2",
        "devices_per_card: 9",
        "9 is more than a node has",
        "1 to 8",
    ),
    spoilt(
        "cluster",
        "a negative latency",
        "{latency_s: 4.0e-6",
        "{latency_s: -4.0e-6",
        "links.node.latency_s: -4.0e-06 does not fit",
        ">= 0",
    ),
    spoilt(
        "cluster",
        "a latency that is not a number",
        "{latency_s: 4.0e-6",
        "{latency_s: .nan",
        "links.node.latency_s: nan does not fit",
    ),
    spoilt(
        "cluster",
        "an infinite bandwidth",
        "bandwidth_bytes_per_s: 3.0e+11",
        "bandwidth_bytes_per_s: .inf",
        "links.node.bandwidth_bytes_per_s: inf does not fit",
    ),
    spoilt(
        "cluster",
        "a bandwidth beyond numbers",
        "bandwidth_bytes_per_s: 3.0e+11",
        "bandwidth_bytes_per_s: 1e999",
        "inf does not fit",
    ),
    spoilt(
        "cluster",
        "no bandwidth",
        "bandwidth_bytes_per_s: 3.0e+11",
        "bandwidth_bytes_per_s: 0",
        "bandwidth_bytes_per_s: 0 does not fit",
        ">= 1",
    ),
    spoilt(
        "cluster",
        "a link without bandwidth",
        ", bandwidth_bytes_per_s: 3.0e+11",
        "",
        "links.node: missing key 'bandwidth_bytes_per_s'",
    ),
    spoilt(
        "cluster",
        "a link that is a number",
        "node: {latency_s: 4.0e-6, bandwidth_bytes_per_s: 3.0e+11}",
        "node: 5",
        "links.node: 5 does not fit",
        "a mapping with latency_s",
    ),
    spoilt(
        "cluster",
        "a link of an unknown distance",
        "  rack:",
        "  moon:",
        "links.moon: unknown key 'moon'",
        "node, rack, cluster",
    ),
    whole(
        "cluster",
        "the link within a rack left out",
        CLUSTER.replace("  rack:", "  # rack:"),
        ":9: links: missing key 'rack', over which devices of this cluster talk",
        "latency_s and bandwidth_bytes_per_s",
    ),
    whole(
        "cluster",
        "racks that need a link",
        CLUSTER.replace("devices_per_card: 2", "nodes_per_rack: 1"),
        ":9: links: missing key 'cluster'",
    ),
    spoilt("cluster", "links under another name", "links:", "wires:", "unknown key 'wires'", "nodes, links"),
    spoilt(
        "cluster",
        "nodes that are no list",
        "nodes:\n  - count",
        "nodes:\n    count",
        "nodes: {count: 2",
        "does not fit",
        "a list",
    ),
    spoilt(
        "cluster",
        "a group that is a word",
        "  - count: 2\n",
        "  - A100\n  - count: 2\n",
        "nodes[0]: 'A100' does not fit",
        "a mapping with count",
    ),
    spoilt(
        "cluster",
        "a rate of nothing",
        "devices_per_card: 2",
        "rates: {fp32_flop_per_s: 0}",
        "rates.fp32_flop_per_s: 0 does not fit",
        "> 0",
    ),
    spoilt(
        "cluster",
        "a rate of an unknown precision",
        "devices_per_card: 2",
        "rates: {fp8_flop_per_s: 1}",
        "unknown key 'fp8_flop_per_s'",
        "bf16_flop_per_s",
    ),
]

PLANS = [
    spoilt("plan", "an unknown key", "shard_optimizer", "zero", "unknown key 'zero'", "shard_optimizer"),
    spoilt(
        "plan",
        "an unknown precision",
        "precision: fp32",
        "precision: fp8",
        "precision: 'fp8' does not fit",
        "fp32, bf16, fp16",
    ),
    spoilt(
        "plan",
        "an unknown execution",
        "execution: eager",
        "execution: jit",
        "execution: 'jit' does not fit",
        "eager, compiled",
    ),
    spoilt(
        "plan",
        "a yes of YAML 1.1",
        "shard_optimizer: false",
        "shard_optimizer: no",
        "shard_optimizer: 'no' does not fit",
        "true or false",
    ),
    spoilt("plan", "no samples", "samples: 16", "samples: 0", "batch.samples: 0 does not fit", ">= 1"),
    spoilt(
        "plan", "an axis of text", "data: 2", "data: two", "axes.data: 'two' does not fit", "a whole number"
    ),
    spoilt(
        "plan",
        "an unknown axis",
        "order: [data, pipeline",
        "order: [data, tensor",
        "axes.order[1]: 'tensor' does not fit",
        "data, pipeline, spatial",
    ),
    spoilt(
        "plan",
        "an axis more",
        "  spatial: 1",
        "  tensor: 1",
        "unknown key 'tensor'",
        "data, pipeline, spatial, order",
    ),
    spoilt(
        "plan", "a family of nothing", "family: chimera", "family: ''", "schedule.family: '' does not fit"
    ),
    spoilt(
        "plan",
        "an unknown update",
        "update: barrier",
        "update: never",
        "schedule.update: 'never' does not fit",
        "rolling, barrier",
    ),
    spoilt(
        "plan",
        "a word that is no action",
        "- 0F0 1F1' 1B1'",
        "- 0F0 1X1 1B1'",
        "schedule.orders[0]: '1X1' is no action",
        "2F3",
    ),
    spoilt("plan", "an action without its micro-batch", "- 0F0 1F1'", "- 0F 1F1'", "'0F' is no action"),
    spoilt(
        "plan",
        "an order that is a list",
        "- 0F0 1F1' 1B1' 0B0",
        "- [0F0]\n    - ",
        "schedule.orders[0]: [0F0] does not fit",
    ),
    spoilt(
        "plan", "a negative worker", "- [0, 1]", "- [0, -1]", "schedule.place[0][1]: -1 does not fit", ">= 0"
    ),
    spoilt("plan", "a worker of a half", "- [0, 1]", "- [0, 0.5]", "schedule.place[0][1]: 0.5 does not fit"),
    spoilt(
        "plan",
        "a setting that is a list",
        "settings: {}",
        "settings: {caps: [1, 2]}",
        "schedule.settings.caps: [1, 2] does not fit",
    ),
    spoilt(
        "plan",
        "an argument that is a list",
        "arguments: {}",
        "arguments: {sizes: [1]}",
        "model.arguments.sizes: [1] does not fit",
    ),
    spoilt(
        "plan",
        "an argument that is not a number",
        "arguments: {}",
        "arguments: {rate: .nan}",
        "model.arguments.rate: nan does not fit",
    ),
    spoilt(
        "plan",
        "a model without a name",
        "workload: tiny.py",
        "workload: ''",
        "model.workload: '' does not fit",
    ),
    spoilt("plan", "no fingerprint", "  fingerprint", "  finger", "unknown key 'finger'", "fingerprint"),
    spoilt(
        "plan",
        "a stage of no list",
        "{layers: [embed, down, middle]",
        "{layers: embed",
        "stages[0].layers: 'embed' does not fit",
        "a list",
    ),
    spoilt(
        "plan",
        "a layer that is a number",
        "[embed, down,",
        "[embed, 3,",
        "stages[0].layers[1]: 3 does not fit",
        "text",
    ),
    spoilt(
        "plan",
        "a grid of nothing",
        "spatial: []}",
        "spatial: [0]}",
        "stages[0].spatial[0]: 0 does not fit",
        ">= 1",
    ),
    spoilt(
        "plan",
        "a place of five numbers",
        "- 0 0 0 0 0 0",
        "- 0 0 0 0 0",
        "places[0]: '0 0 0 0 0' does not fit",
        "rank node slot data pipeline spatial",
    ),
    spoilt(
        "plan",
        "a place on a negative node",
        "- 0 0 0 0 0 0",
        "- 0 -1 0 0 0 0",
        "places[0]: '0 -1 0 0 0 0' does not fit",
    ),
    spoilt(
        "plan",
        "a place that is a number",
        "- 0 0 0 0 0 0",
        "- 0",
        "places[0]: 0 does not fit",
        "rank node slot",
    ),
    spoilt(
        "plan",
        "a time in fractions",
        "forward_ns: 307692",
        "forward_ns: 307692.5",
        "times[0].forward_ns: 307692.5 does not fit",
    ),
    spoilt(
        "plan",
        "a time of another unit",
        "forward_ns: 307692",
        "forward_ms: 1",
        "times[0].forward_ms: unknown key",
        "forward_ns, backward_ns",
    ),
    spoilt(
        "plan",
        "a negative time",
        "forward_ns: 307692",
        "forward_ns: -1",
        "times[0].forward_ns: -1 does not fit",
        ">= 0",
    ),
    spoilt(
        "plan",
        "a time beyond all clocks",
        "forward_ns: 307692",
        f"forward_ns: {2**63}",
        "does not fit",
        "a whole number",
    ),
    spoilt(
        "plan",
        "a hop in no direction",
        "direction: act",
        "direction: up",
        "hops[0].direction: 'up' does not fit",
        "act, grad",
    ),
    spoilt("plan", "a hop without its bytes", "bytes: 3200, ", "", "hops[0]: missing key 'bytes'"),
    spoilt(
        "plan",
        "an idle share that is not a number",
        "certificate: null",
        "certificate: {objective_ns: 1, bound_ns: 1, rivals: [{kind: family, idle: .nan}]}",
        "certificate.rivals[0].idle: nan does not fit",
    ),
    spoilt(
        "plan",
        "a memory without its limit",
        ", limit: 40000000000}",
        "}",
        "prediction.memory[0]: missing key 'limit'",
    ),
    spoilt(
        "plan",
        "stages that are no list",
        PLAN[PLAN.index("stages:") : PLAN.index("places:")],
        "stages: 2\n",
        "stages: 2 does not fit",
        "a list",
    ),
]

PROFILES = [
    spoilt("profile", "an unknown key", '"own_saved_bytes"', '"saved"', "saved"),
    spoilt(
        "profile", "a time that is not a number", '"median": 5.128205128205128e-05', '"median": NaN', "median"
    ),
    spoilt("profile", "a negative time", '"median": 5.128205128205128e-05', '"median": -1.0', "median"),
    spoilt(
        "profile", "a negative memory", '"own_saved_bytes": 0', '"own_saved_bytes": -1', "own_saved_bytes"
    ),
    spoilt("profile", "a source nobody has", '"roofline"', '"guess"', "source", "measured"),
    spoilt("profile", "a layer of text", '"fixed_flops": 0', '"fixed_flops": "0"', "fixed_flops"),
]

CASES = NO_YAML + CLUSTERS + PLANS + PROFILES


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_bad_input_gets_one_message_that_says_where_and_what_is_allowed(case: Case, tmp_path: Path) -> None:
    path = tmp_path / case.file
    path.write_bytes(case.content if isinstance(case.content, bytes) else case.content.encode())
    with pytest.raises(BadInput) as caught:
        case.read(path)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert "\n" not in message
    assert caught.value.allowed
    assert caught.value.status == 2
    for words in case.said:
        assert words in message


def test_there_are_enough_cases_and_none_twice() -> None:
    assert len(CASES) >= 60
    assert len({(case.read, case.content) for case in CASES}) == len(CASES)


@pytest.mark.parametrize("kind", READERS)
def test_what_is_spoilt_was_right(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "given.yaml"
    path.write_text(TEXTS[kind])
    READERS[kind](path)


@pytest.mark.parametrize("kind", READERS)
def test_a_file_that_cannot_be_read_is_named(kind: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"gone.yaml: cannot read: No such file"):
        READERS[kind](tmp_path / "gone.yaml")
    with pytest.raises(BadInput, match="cannot read: Is a directory"):
        READERS[kind](tmp_path)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(sorted(TEXTS)), st.data())
def test_a_file_with_a_slip_is_read_or_refused_in_one_line(kind: str, data: st.DataObject) -> None:
    parse = {"cluster": examples.parse_cluster, "plan": plan_yaml.parse, "profile": profile_yaml.loads}[kind]
    text = TEXTS[kind]
    start = data.draw(st.integers(0, len(text)))
    end = min(len(text), start + data.draw(st.integers(0, 30)))
    slip = data.draw(st.text(alphabet="a0-.:,[]{}'\" \n\t&*!", max_size=4))
    try:
        parse(text[:start] + slip + text[end:])
    except BadInput as refused:
        assert "\n" not in str(refused)
