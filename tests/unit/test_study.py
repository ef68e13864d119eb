"""Studies: data in, points out; errors name their line."""

import re
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

from frameworktax.errors import UsageError
from frameworktax.sweep import grid
from frameworktax.sweep import study as study_module
from frameworktax.sweep.study import TEMPLATE, Source, load, value_of

STUDY = """
[study]
name = "runtimes for my encoder"
time_budget = "10min"

[grid]
models   = ["bert-base", "distilbert", "resnet-18"]
runtimes = ["eager", "onnxruntime"]   # or "all"
batch    = [1, 2, 4]
length   = [
  64,
  128,
]
image_size = 224
precision = ["float32"]
platform = ["local"]

[[exclude]]
models = ["distilbert"]
batch  = [4]

[[exclude]]
models = ["bert-base"]
batch = 1
length = [64]

[[point]]
models = "mlp"
runtimes = "eager"

[[priority]]
models = ["mlp"]
value = 7
"""


@pytest.fixture
def study(tmp_path: Path):
    def made(text: str = STUDY, *words: str, **options):
        path = tmp_path / "study.toml"
        path.write_text(text)
        return load(path, words, **options)

    return made


def refused(study, text: str, *words: str) -> str:
    with pytest.raises(UsageError) as caught:
        study(text, *words)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_grid_with_all_that_changes_it(study):
    found = study()
    counts: dict[str, int] = {}
    for point in found.points:
        counts[point.workload.model] = counts.get(point.workload.model, 0) + 1
    # bert-base without one of its cells; distilbert without batch 4; a picture has no length.
    assert counts == {"bert-base": 10, "distilbert": 8, "resnet-18": 6, "mlp": 1}
    assert len(set(found.points)) == len(found.points)
    lengths = {(p.workload.model, p.workload.length) for p in found.points}
    assert lengths == {
        ("bert-base", 64),
        ("bert-base", 128),
        ("distilbert", 64),
        ("distilbert", 128),
        ("resnet-18", None),
        ("mlp", None),
    }
    assert {p.workload.image_size for p in found.points if p.workload.model == "resnet-18"} == {224}
    assert {p.point.workload.model: p.priority for p in found.planned} == {
        "bert-base": 0,
        "distilbert": 0,
        "resnet-18": 0,
        "mlp": 7,
    }
    assert found.settings.time_budget == 600
    assert found.notes == ()


def test_a_table_may_name_what_a_grid_left_at_its_default(study):
    grid = '[grid]\nmodels = ["bert-base", "mlp"]\nruntimes = "eager"\nbatch = 1\n'
    wide = '[[point]]\nmodels = "bert-base"\nruntimes = "eager"\nwidth = [0.5, 1]\n'
    for axis in ('precision = "float32"', "width = 1", 'phase = "forward"', 'input = "dense"'):
        text = f'{grid}{wide}[[exclude]]\nmodels = "bert-base"\n{axis}\n'
        found = study(text)
        left = {(p.workload.model, p.workload.width) for p in found.points}
        assert left == {("mlp", 1.0)} | ({("bert-base", 0.5)} if "width" in axis else set())
        assert found.notes == ()


def test_spans_scalars_and_all(study):
    text = '[grid]\nmodels = "mlp"\nruntimes = "all"\nbatch = "1..8,10"\n'
    found = study(text)
    assert {p.workload.batch for p in found.points} == {1, 2, 4, 8, 10}
    names = {p.runtime for p in found.points}
    assert {"eager", "onnxruntime"} <= names
    assert "null" not in names  # the floor is measured beside the others in any case


def test_an_axis_of_generation_says_nothing_of_a_forward_pass(study):
    text = (
        '[grid]\nmodels = "gpt2"\nruntimes = "eager"\nbatch = 1\n'
        'phase = ["forward", "generate"]\nnew_tokens = [4, 8]\n'
    )
    try:
        found = study(text)
    except UsageError as error:  # pragma: no cover - a model that does not generate says so
        pytest.fail(str(error))
    phases = sorted((p.workload.phase, p.workload.new_tokens) for p in found.points)
    assert phases == [("forward", None), ("generate", 4), ("generate", 8)]


@pytest.mark.parametrize(
    ("old", "new", "note"),
    [
        ('models = ["mlp"]\nvalue', 'models = ["resnet-50"]\nvalue', r"31: priority\.0 "),
        ("batch = 1\n", "batch = 9\n", r"22: exclude\.1 "),
        ("batch  = [4]", "batch  = [5]", r"18: exclude\.0 "),
        ('models = ["distilbert"]\nb', 'models = ["distilberd"]\nb',
         r"18: exclude\.0 .*'distilberd'.*'distilbert'\?"),
        ('[grid]', 'together = [["bert-base", "berd"]]\n[grid]', r"6: study\.together: 'berd' "),
        ('[[point]]', '[[point]]\nlength = [9]', r"28: point\.0\.length "),
    ],
)  # fmt: skip
def test_tables_without_effect_and_names_of_nothing_are_noted(study, old, new, note):
    assert STUDY.count(old) == 1
    (text,) = study(STUDY.replace(old, new)).notes
    assert re.search(rf"line {note}", text)


@pytest.mark.parametrize(
    ("old", "new", "line", "says"),
    [
        ('"resnet-18"', '"resnet-81"', 7, ["resnet-18"]),
        ('"resnet-18"', '"own\\u0000.py:build"', 7, ["is no name"]),
        ('"resnet-18"', '" "', 7, ["is no name"]),
        ('"eager", ', '"eagre", ', 8, ["'eager'", "onnxruntime"]),
        ("batch    =", "bacth    =", 9, ["did you mean 'batch'"]),
        ("[1, 2, 4]", "[1, 0]", 9, ["0"]),
        ("[1, 2, 4]", '"1..x"', 9, ["1..x", "1..64"]),
        ("[1, 2, 4]", "[]", 9, ["empty"]),
        ("[1, 2, 4]", "[true]", 9, ["True"]),
        ("[1, 2, 4]", "[1, 2147483648]", 9, ["2147483647"]),
        ("[1, 2, 4]", "4\nbatch_dim = true", 10, ["whole number"]),
        ("  128,", '  "x",', 10, ["'x'"]),
        ("224", "-1", 14, ["-1"]),
        ('["float32"]', '["float8"]', 15, ["float8", "bfloat16"]),
        ('["local"]', '["lcoal"]', 16, ["'local'", "cpu"]),
        ('"10min"', '"soon"', 4, ["soon", "10min"]),
        ("[grid]", "[grd]", 6, ["did you mean 'grid'"]),
        ("value = 7", 'value = "high"', 33, ["high"]),
        ("length = [64]", "lenght = [64]", 25, ["did you mean 'length'"]),
        ('models = "mlp"\n', "", 27, ["models"]),
        ("[[point]]", "[point]", 27, ["write [[point]]"]),
        ("value = 7", "", 31, ["priority.0.value: is missing"]),
        ('"10min"', '"10min"\nprocesses = "3"', 5, ["whole number"]),
        ('"10min"', '"10min"\nattempts = 99', 5, ["10", "99"]),
        ('"10min"', '"10min"\ntogether = ["bert-base", "mlp"]', 5, ['[["a", "b"]]']),
    ],
)
def test_an_error_names_its_line(study, old, new, line, says):
    assert STUDY.count(old) >= 1
    message = refused(study, STUDY.replace(old, new, 1))
    assert f"study.toml line {line}: " in message
    for word in says:
        assert word in message


def test_no_toml(study):
    assert "line 6" in refused(study, STUDY.replace("[grid]", "[grid"))
    assert "nested too deep" in refused(study, "x = " + "[" * 100_000)


def test_a_table_of_another_form(study):
    for text in (STUDY.replace("[grid]", "[[grid]]"), "grid = 3"):
        assert "grid: is no table; write [grid]" in refused(study, text)


def test_a_byte_order_mark_is_no_part_of_a_study(study):
    assert study("\ufeff" + STUDY).points == study().points


def test_no_points(study):
    assert "holds no point" in refused(study, "[study]\n")
    everything = refused(study, '[grid]\nmodels="mlp"\n[[exclude]]\nmodels="mlp"\n')
    assert "[[exclude]]" in everything
    assert "points; " in refused(
        study, f'[grid]\nmodels="mlp"\nbatch={list(range(1, 9999))}\nwidth={list(range(1, 99))}'
    )


def test_all_tables_together_have_a_limit(study, monkeypatch):
    monkeypatch.setattr(grid, "MAX_POINTS", 5)
    table = '[[point]]\nmodels = "mlp"\nruntimes = "eager"\nbatch = [1, 2, 4]\n'
    assert len(study(table).points) == 3
    assert "line 5: point.1: 6 points; 5 " in refused(study, table + table)


@pytest.mark.parametrize(
    ("words", "check"),
    [
        (["grid.batch=1,2"], lambda s: {p.workload.batch for p in s.points} == {1, 2}),
        (["grid.batch=1..4"], lambda s: {p.workload.batch for p in s.points} == {1, 2, 4}),
        (["grid.width=[0.5]"], lambda s: {p.workload.width for p in s.points} == {0.5, 1.0}),
        (["grid.models=mlp"], lambda s: {p.workload.model for p in s.points} == {"mlp"}),
        (["grid.models=[mlp,resnet-18]"], lambda s: "resnet-18" in s.points[-1].workload.model
         or any(p.workload.model == "resnet-18" for p in s.points)),
        (["study.time_budget=5min"], lambda s: s.settings.time_budget == 300),
        (["study.time_budget=90"], lambda s: s.settings.time_budget == 90),
        (["exclude=[{batch=[4]}]"], lambda s: {p.workload.batch for p in s.points} == {1, 2}),
        (["~exclude"], lambda s: len(s.points) == 31),
        (["~grid.length"], lambda s: not any(
            p.workload.length for p in s.points if p.workload.model == "distilbert")),
    ],
)  # fmt: skip
def test_overrides(study, words, check):
    assert check(study(STUDY, *words))


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("grid.bacth=1", "did you mean 'batch'"),
        ("batch=1", "grid.batch"),
        ("hello", "KEY=VALUE"),
        ("~nothing", "no nothing"),
        ("~grid.nothing", "no grid.nothing"),
        ("exclude.0.batch=1", "is no override"),
        ("study.name.x=1", "unknown key"),
        ("grid.batch=1..x", "'grid.batch=1..x'"),
        ("=1", "KEY=VALUE"),
        ("~grid.batch=5", "is no override"),
        ("grid.batch=range(1,9)", "'grid.batch=range(1,9)'"),
        ("exclude=[{batch=[4}]", "is no list"),
        ("grid.batch=" + "[" * 3000 + "]" * 3000, "'grid.batch' is nested too deep"),
        ("grid.batch=" + "[" * 3000 + "x" + "]" * 3000, "'grid.batch' is nested too deep"),
        ("grid.batch=" + "{a=" * 3000, "'grid.batch' is nested too deep"),
    ],
)
def test_wrong_overrides(study, word, says):
    assert says in refused(study, STUDY, word)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1), ("1,2", [1, 2]), ("[1, 2]", [1, 2]), ("a,b", ["a", "b"]), ("[a,b]", ["a", "b"]),
        ("true", True), ("5min", "5min"), ('"a,b"', "a,b"), ('"a,b",c', ["a,b", "c"]),
        ("own.py:build", "own.py:build"), ("", ""), ("0.5,1", [0.5, 1]), ("1..4,8", ["1..4", 8]),
        ("[[a,b],[c, d e]]", [["a", "b"], ["c", "d e"]]), ("ä,🙂", ["ä", "🙂"]), ("[a", "[a"),
        ("[{batch=[4]}]", [{"batch": [4]}]), ("1\ny=3", "1\ny=3"),
    ],
)  # fmt: skip
def test_values_that_are_typed(text, value):
    assert value_of(text) == value


def test_code_runs_only_where_it_is_allowed(study, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    mark = tmp_path / "ran"
    (tmp_path / "own.py").write_text(f"open({str(mark)!r}, 'w')\ndef build(): pass\n")
    text = STUDY.replace('"resnet-18"', '"own.py:build", "os.path:join"')
    message = refused(study, text)
    assert "--allow-code" in message
    assert f"own.py:build ({tmp_path / 'own.py'})" in message and "os.path:join" in message
    found = study(text, allow_code=True)
    assert found.code == (f"own.py:build ({tmp_path / 'own.py'})", "os.path:join")
    assert not mark.exists()  # reading a study runs nothing, allowed or not
    # what the user names needs no flag, as with measure; what the file names beside it does
    assert study(STUDY, "grid.models=own.py:build").code == (
        f"own.py:build ({tmp_path / 'own.py'})",
    )
    message = refused(study, text, 'point=[{models="own.py:build"}]')
    assert "os.path:join" in message


def test_code_of_a_hub_model_cannot_be_allowed_by_a_study(study):
    message = refused(study, STUDY.replace("[grid]", "[grid]\ntrust_remote_code = true"))
    assert "trust_remote_code" in message


def test_a_study_from_python():
    data = {"grid": {"models": ["mlp"], "runtimes": ["eager"], "batch": [1, 2]}}
    assert len(load(data).points) == 2
    with pytest.raises(UsageError, match=r"grid\.batch"):
        load({"grid": {"models": ["mlp"], "batch": [0]}})
    assert data["grid"]["batch"] == [1, 2]


def test_the_template_is_a_study_and_so_is_all_of_its_comments(study):
    assert study(TEMPLATE.read_text()).points
    lines = []
    for line in TEMPLATE.read_text().splitlines():
        bare = line.removeprefix("# ")
        try:
            tomllib.loads(bare)
        except tomllib.TOMLDecodeError:
            bare = line
        lines.append(bare)
    everything = "\n".join(lines)
    assert "\n[[exclude]]" in everything
    keys = set(re.findall(r"^(\w+) = ", everything, re.MULTILINE))
    assert keys == {*study_module.Priority.model_fields, *study_module.Settings.model_fields}
    alone = ("threads", "phase", "input", "batch_dim")
    keep = "\n".join(x for x in lines if not x.startswith(alone))
    assert study(keep).settings.attempts == 2


@pytest.mark.parametrize(
    ("location", "where"),
    [
        (("grid",), "s line 6: grid"),
        (("grid", "length"), "s line 10: grid.length"),
        (("exclude", 1, "length"), "s line 25: exclude.1.length"),
        (("priority", 0, "value"), "s line 33: priority.0.value"),
        (("exclude", 2), "s: exclude.2"),
        ((), "s: the study"),
    ],
)
def test_lines_are_found(location, where):
    assert Source("s", STUDY).where(location) == where


def test_a_study_of_many_tables_is_looked_through_once_for_its_lines(study, monkeypatch):
    looked = []

    def match(text):
        looked.append(text)
        return header.match(text)

    header = study_module.HEADER
    monkeypatch.setattr(study_module, "HEADER", SimpleNamespace(match=match))
    assert len(study().points) == 25
    assert len(looked) == len(STUDY.splitlines())
