"""Compares what a backend printed with what should have arrived.

    arrived.py all SENT ARRIVED EVALUATIONS     recorded spans complete and once, and each evaluation once as span, as event and in the metric
    arrived.py runs ARRIVED CRITERION TRACE=COMPLETENESS:LABEL…     what was said of each of these traces
    arrived.py kept ARRIVED CRITERION RUNS          the same runs: no span is lost, and each run has one score, however often it was sent
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


def kept(arrived, criterion, file):
    with open(file) as lines_of_runs:
        expected = [line.strip() for line in lines_of_runs]
    spans, ids, labels = collections.Counter(), collections.defaultdict(set), collections.defaultdict(set)
    n_scores = 0
    for line in lines(arrived):
        if line["signal"] != "span":
            continue
        if line["name"] == f"evaluation {criterion}":
            ids[line["trace"]].add(line["span"])
            labels[line["trace"]].add(line["attributes"]["gen_ai.evaluation.score.label"])
            n_scores += 1
        elif not is_ours(line):
            spans[line["trace"], line["span"]] += 1
    of_trace = collections.Counter(trace for trace, _ in spans)
    lost = sum(3 - of_trace[trace] for trace in expected)
    without = [trace for trace in expected if not ids[trace]]
    several = [trace for trace in expected if len(ids[trace]) > 1]
    wrong = [trace for trace in expected if "fail" in labels[trace]]
    right = sum("pass" in labels[trace] for trace in expected)
    again = sum(spans.values()) - len(spans)
    print(
        f"{len(expected)} acknowledged runs: {3 * len(expected)} spans, {lost} lost, {again} received again; {right} verdicts right, {len(wrong)} wrong, "
        f"{len(expected) - right - len(wrong)} not given, {len(without)} of these without any score, {len(several)} with several; "
        f"{n_scores - len(ids)} scores received again"
    )
    assert expected and not lost and not without and not several and not wrong, f"lost {lost}, without a score {without[:3]}, several {several[:3]}, wrong {wrong[:3]}"
    assert right, "some runs are judged"


{"all": everything, "runs": runs, "gateway": gateway, "kept": kept}[sys.argv[1]](*sys.argv[2:])
