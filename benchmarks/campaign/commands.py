"""The commands of the campaign, as somebody would type them; ``-k`` stands for ``--kind logits``."""

LOGITS = ["--kind", "logits"]


def listed(text: str) -> tuple[str, ...]:
    """Return the words of a text."""
    return tuple(text.split())


def typed(text: str) -> list[list[str]]:
    """Return the words of every line.

    >>> typed("check q y -k")
    [['check', 'q', 'y', '--kind', 'logits']]
    """
    return [line.replace(" -k", " --kind logits").split() for line in text.strip().splitlines()]


def ended(words: list[str]) -> list[str]:
    """Return a command; one that puts parts together ends with the command that made them.

    >>> ended(["merge", "check0", "-o", "new"])[4:]
    ['--', 'check', 'q', 'y', '--kind', 'logits']
    """
    made = next((each for each in MADE if words[0] == "merge" and each[-1] == words[1]), None)
    return words if made is None else [*words, "--", *made[: made.index("--num-parts")]]


def _by_name(text: str) -> dict[str, list[list[str]]]:
    """Return commands by the name in front of each line."""
    found: dict[str, list[list[str]]] = {}
    for line in text.strip().splitlines():
        name, _, command = line.partition(": ")
        found.setdefault(name, []).extend(typed(command))
    return found


# What is in every box from the beginning, made by segcal itself.
MADE = typed("""
fit p y -k --calibrator ts --splits splits.json -o cal
apply cal p -k -o applied
convert q --labels y -k -o store
trust cal p -k -o trusted
monitor cal q -k --state state.json
evaluate p y -k --calibrator cal --metrics nll,dice --csv cases.csv
view cal q -k -o viewed
benchmark protocol.toml -o results
check q y -k --num-parts 2 --part-id 0 -o check0
check q y -k --num-parts 2 --part-id 1 -o check1
apply cal q -k --num-parts 2 --part-id 0 -o apply0
apply cal q -k --num-parts 2 --part-id 1 -o apply1
evaluate q y -k --metrics nll --num-parts 2 --part-id 0 -o evaluate0
evaluate q y -k --metrics nll --num-parts 2 --part-id 1 -o evaluate1
""")
# What is run once in the process that trials are forked from.
WARM = typed("""
fit p y -k --calibrator ts -o warm
evaluate q y -k --calibrator cal --report warm.html
apply cal q -k -o warmed --confidence-map
trust cal q -k -o warmth
audit cal q -k
""")
# Documents of ours and of users, and commands that read them.
DOCUMENTS = _by_name("""
cal/calibrator.json: apply cal q -k -o new
cal/calibrator.json: audit cal
cal/calibrator.json: card cal -o new.md
cal/calibrator.json: trust cal q -k --level 0.5 -o new
cal/calibrator.json: monitor cal q -k
cal/calibrator.json: fit q y -k --calibrator ts -o cal
cal/weights.safetensors: apply cal q -k -o new
cal/weights.safetensors: evaluate q y -k --calibrator cal
cal/weights.safetensors: fit q y -k --calibrator ts -o cal
applied/calibration.json: apply cal p -k -o applied
applied/calibration.json: check applied y -k
applied/calibration.json: apply cal p -k -o applied --overwrite
applied/.segcal/c0.json: apply cal p -k -o applied
applied/.segcal/c0.json: apply cal q -k -o applied --overwrite
store/dataset.json: check store
store/dataset.json: evaluate store --metrics nll
store/dataset.json: convert q --labels y -k -o store
state.json: monitor cal p -k --state state.json
splits.json: fit p y -k --calibrator ts --splits splits.json -o new
protocol.toml: benchmark protocol.toml -o new
protocol.toml: benchmark protocol.toml -o results
groups.csv: fit p y -k --calibrator ts --groups groups.csv -o new
groups.csv: check p y -k --groups groups.csv
subgroups.csv: card cal cases.csv --subgroups subgroups.csv -o new.md
cases.csv: card cal cases.csv -o new.md
cases.csv: card cal cases.csv -o new.html
results/summary.json: report results -o new.html
results/summary.json: benchmark protocol.toml -o results
results/protocol.json: report results -o new.html
results/protocol.json: benchmark protocol.toml -o results
results/checked.json: report results -o new.html
results/checked.json: benchmark protocol.toml -o results
results/units/t/repeat_0/ts-single.jsonl: report results -o new.html
results/units/t/repeat_0/ts-single.jsonl: benchmark protocol.toml -o results
trusted/trust.json: trust cal p -k -o trusted
check0/.part/part.json: merge check0 check1 -o new
check1/.part/000000.results: merge check0 check1 -o new
evaluate0/.part/part.json: merge evaluate0 evaluate1 -o new
evaluate0/.part/part.json: evaluate q y -k --metrics nll --num-parts 2 --part-id 0 -o evaluate0
evaluate1/.part/000000.results: merge evaluate0 evaluate1 -o new
apply0/.part/part.json: merge apply0 apply1 -o new
apply1/.part/000000.results: merge apply0 apply1 -o new
""")
# Commands that end in the name of an option whose value is a folder, or a file.
FOLDER_OUTPUTS = _by_name("""
fit: fit p y -k --calibrator ts -o
apply: apply cal p -k -o
convert: convert q --labels y -k -o
view: view cal q -k -o
trust: trust cal p -k --masks -o
check: check q y -k -o
evaluate: evaluate q y -k --metrics nll -o
audit: audit cal q -k -o
benchmark: benchmark protocol.toml -o
merge: merge apply0 apply1 -o
part: check q y -k --num-parts 2 --part-id 0 -o
figures: report results -o new.html --figures
""")
FILE_OUTPUTS = _by_name("""
csv: evaluate q y -k --metrics nll --csv
summary: evaluate q y -k --metrics nll --summary
page: evaluate q y -k --metrics nll --report
report: report results -o
card: card cal cases.csv -o
export: export cal
state: monitor cal p -k --state
splits: fit p y -k --calibrator ts -o new --splits
""")
# Commands that go on with, or replace, what is in the box.
AGAIN = typed("""
apply cal p -k -o applied
apply cal q -k -o applied
apply cal p -k --output-kind probs -o applied
convert q --labels y -k -o store
convert p -k -o store
trust cal p -k -o trusted --masks
benchmark protocol.toml -o results
fit p y -k --calibrator ets -o cal
monitor cal p -k --state state.json
evaluate p y -k --metrics nll --csv cases.csv
report results
view cal q -k -o viewed
fit p y -k --calibrator ts --splits splits.json -o new
check q y -k --num-parts 2 --part-id 0 -o check0
merge check0 check1 -o new
""")
# Commands that write.
WRITERS = typed("""
fit q y -k --calibrator ts -o new
fit q y -k --calibrator ts --splits new.json -o new
fit p y -k --calibrator ets -o cal
apply cal q -k -o new
apply cal q -k --confidence-map -o new
apply cal nn -o new --ignore-pooling
apply cal zarr -k -o new
apply cal nii -k -o new
apply cal q -k --output-kind probs --overwrite -o applied
convert q --labels y -k -o new
convert p -k --overwrite -o store
view cal q -k -o new
view cal nii -k --to contours -o new
view cal q -k --to bids -o new
trust cal q -k --masks -o new
monitor cal q -k --state new.json
monitor cal p -k --state state.json
evaluate q y -k --metrics nll -o new
evaluate q y -k --metrics nll --csv new.csv
benchmark protocol.toml -o new
merge apply0 apply1 -o new
merge evaluate0 evaluate1 -o new
check q y -k -o new
check q y -k --num-parts 2 --part-id 1 -o new
apply cal q -k --num-parts 2 --part-id 1 -o new
card cal cases.csv -o new.md
report results -o new.html
audit cal q -k -o new
apply cal file://{box}/q -k -o new
apply cal q -k -o file://{box}/new
""")
