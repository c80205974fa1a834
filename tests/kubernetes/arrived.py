"""Compares what a backend printed with what should have arrived.

    arrived.py all SENT ARRIVED EVALUATIONS     recorded spans complete and once, and each evaluation once as span, as event and in the metric
    arrived.py runs ARRIVED CRITERION TRACE=COMPLETENESS:LABEL…     what was said of each of these traces
    arrived.py gateway ARRIVED CRITERION RUNS       runs of two spans and a root each, all of which pass: spans, right, wrong and missing verdicts

SENT and ARRIVED are the lines of `peer sink`, EVALUATIONS those of `spanscore replay --format jsonl`.
"""

import collections
import json
import sys


def lines(path):
    with open(path) as file:
        return [json.loads(line) for line in file if line.startswith("{")]


def is_ours(line):
    return line["scope"] == "spanscore"


def identity(line):
    return json.dumps(line, sort_keys=True)


def same(what, expected, found):
    expected, found = collections.Counter(expected), collections.Counter(found)
    missing, extra = list((expected - found).elements()), list((found - expected).elements())
    assert not missing and not extra, f"{what}: {len(missing)} missing, {len(extra)} too many; such as {(missing + extra)[0]}"
    return sum(found.values())


def everything(sent, arrived, evaluations):
    sent, arrived, evaluations = lines(sent), lines(arrived), lines(evaluations)
    n_spans = same("spans", map(identity, sent), [identity(line) for line in arrived if line["signal"] == "span" and not is_ours(line)])

    def judged(signal):
        return [
            (line["trace"], line["attributes"]["gen_ai.evaluation.name"], line["attributes"]["gen_ai.evaluation.score.label"])
            for line in arrived
            if line["signal"] == signal and is_ours(line)
        ]

    expected = [(line["trace_id"], line["criterion"], line["label"]) for line in evaluations]
    n_scores = same("score spans", expected, judged("span"))
    same("evaluation events", expected, judged("log"))
    counted = [line["sum"] for line in arrived if line["signal"] == "metric" and line["name"] == "spanscore.evaluations"]
    assert counted and counted[-1] == len(expected), f"the metric counts {counted}, {len(expected)} evaluations were expected"
    print(f"{n_spans} spans arrived once each, {n_scores} evaluations once as span, as event and in the metric")


def runs(arrived, criterion, *expected):
    said = collections.defaultdict(list)
    for line in lines(arrived):
        if line["signal"] == "span" and line["name"] == f"evaluation {criterion}":
            attributes = line["attributes"]
            said[line["trace"]].append(f"{attributes['spanscore.completeness']}:{attributes['gen_ai.evaluation.score.label']}")
    for pair in expected:
        trace, answer = pair.split("=")
        assert said[trace] == [answer], f"{trace}: {said[trace]} was said, {answer} was expected"
    print(f"said of the runs: {', '.join(pair.split('=')[1] for pair in expected)}")


def gateway(arrived, criterion, file):
    with open(file) as lines_of_runs:
        expected = [line.strip() for line in lines_of_runs]
    spans, said = collections.defaultdict(set), collections.defaultdict(list)
    for line in lines(arrived):
        if line["signal"] != "span":
            continue
        if line["name"] == f"evaluation {criterion}":
            said[line["trace"]].append(line["attributes"]["gen_ai.evaluation.score.label"])
        elif not is_ours(line):
            spans[line["trace"]].add(line["span"])
    lost = sum(3 - len(spans[trace]) for trace in expected)
    wrong = [trace for trace in expected if "fail" in said[trace]]
    right = [trace for trace in expected if "pass" in said[trace]]
    without = [trace for trace in expected if not {"pass", "fail"} & set(said[trace])]
    silent = [trace for trace in expected if not said[trace]]
    print(
        f"{len(expected)} runs: {3 * len(expected)} spans, {lost} lost; {len(right)} verdicts right, {len(wrong)} wrong, "
        f"{len(without)} not given, {len(silent)} of these without any score"
    )
    assert not wrong and not lost, f"wrong: {wrong[:3]}, lost: {lost}"
    assert len(right) > len(expected) / 2, "most runs are judged"


{"all": everything, "runs": runs, "gateway": gateway}[sys.argv[1]](*sys.argv[2:])
