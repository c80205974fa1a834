//! Tests the real program with a trace that stays open longer than the journal stores its first
//! records.

use super::*;

/// Returns a span of another trace, which is soon closed.
fn filler(number: u64) -> Span {
    let mut span = spans_of_run(1_000 + number, &[], &[]).remove(0);
    span.name = "x".repeat(400 << 10);
    span.attributes.clear();
    at_present(std::slice::from_mut(&mut span), unix_nanos());
    span
}

/// Returns the number of the first record of each segment, oldest segment first.
fn segments(journal: &Path) -> Vec<u64> {
    let files = std::fs::read_dir(journal.join("requests")).unwrap();
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    let firsts = names.filter_map(|name| {
        let digits = name.strip_suffix(".seg")?;
        Some(u64::from_str_radix(digits, 16).unwrap())
    });
    let mut firsts: Vec<u64> = firsts.collect();
    firsts.sort_unstable();
    firsts
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trace_that_outlives_its_records_is_judged_once_and_as_incomplete() {
    let backend = Backend::start().await;
    let endpoint = format!("http://{}", backend.address);
    let folder = tempfile::tempdir().unwrap();
    let journal = folder.path().join("journal");
    let settings = [
        "journal.max_size=64MiB",
        "receivers.otlp.max_request_size=4MiB",
        "assemble.settle=10ms",
    ];
    let start_kept = || start(folder.path(), &endpoint, Some(&journal), &settings);
    let mut sidecar = start_kept();
    let addresses = sidecar.addresses();
    let mut spans = run_of(1);
    at_present(&mut spans, unix_nanos());
    let root = spans.remove(0);
    let n_calls = spans.len();
    send(&addresses[0], &spans);
    let newest = segments(&journal).pop().unwrap();
    let mut n_fillers = 0;
    while segments(&journal)[0] <= newest {
        send(&addresses[0], &[filler(n_fillers)]);
        n_fillers += 1;
        assert!(n_fillers < 1_000, "the segment is kept for ever");
    }
    sidecar.signal(Signal::KILL);
    sidecar.child.wait().unwrap();
    let mut sidecar = start_kept();
    let addresses = sidecar.addresses();
    send(&addresses[0], &[root]);
    wait_for_scores(&backend, N_CRITERIA).await;
    sidecar.signal(Signal::TERM);
    assert_eq!(sidecar.ended().0, 0);
    let received = scores(&backend);
    assert_eq!(received.len(), N_CRITERIA);
    for seen in received.values() {
        assert_eq!(seen.len(), 1, "a score came twice");
        let score = Span::decode(&seen[0][..]).unwrap();
        assert_eq!(completeness(&score), "incomplete");
    }
    let requests = backend.arrived().into_iter();
    let requests = requests.filter(|arrived| arrived.signal == "traces");
    let spans = requests.flat_map(|arrived| {
        let request = ExportTraceServiceRequest::decode(arrived.body).unwrap();
        let groups = request.resource_spans.into_iter();
        let scopes = groups.flat_map(|group| group.scope_spans);
        scopes.flat_map(|scope| scope.spans).collect::<Vec<_>>()
    });
    let n_forwarded = spans.filter(|span| span.name == "execute_tool").count();
    assert_eq!(n_forwarded, n_calls, "each span is delivered all the same");
}
