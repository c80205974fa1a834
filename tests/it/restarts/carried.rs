//! A trace of the real program that stays open while the journal's files are reused again and
//! again, across kills.

use super::*;

/// A request with another trace, which is soon forgotten.
fn filler(number: u64) -> Span {
    let mut span = spans_of_run(1_000 + number, &[], &[]).remove(0);
    span.name = "x".repeat(400 << 10);
    span.attributes.clear();
    at_present(std::slice::from_mut(&mut span), unix_nanos());
    span
}

/// Fillers that may be open at once.
const FILLERS_AT_ONCE: u64 = 2;

/// The number of traces closed since the program started.
fn closed(admin: &str) -> u64 {
    let page = http(admin, "GET /metrics", &[]);
    let lines = page.lines().filter_map(|line| {
        line.strip_prefix("spanscore_traces_closed_total{")?
            .split_once("} ")
    });
    lines.map(|(_, n)| n.parse::<u64>().unwrap()).sum()
}

/// The number of the first record of each segment, oldest first.
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
async fn a_trace_that_is_open_over_many_segments_is_judged_once_and_in_full() {
    let backend = Backend::start().await;
    let endpoint = format!("http://{}", backend.address);
    let folder = tempfile::tempdir().unwrap();
    let journal = folder.path().join("journal");
    // Sixteen segments, of which four are kept for open traces.
    let settings = [
        "journal.max_size=64MiB",
        "scoring.threads=2",
        "receivers.otlp.max_request_size=4MiB",
        // What goes at less than twice this age is not carried.
        "assemble.settle=10ms",
    ];
    let start_kept = || start(folder.path(), &endpoint, Some(&journal), &settings);
    let mut sidecar = start_kept();
    let mut addresses = sidecar.addresses();
    let mut spans = run_of(1);
    at_present(&mut spans, unix_nanos());
    let root = spans.remove(0);
    let mut n_fillers = 0;
    for (n_restarts, spans) in spans.chunks(2).enumerate() {
        send(&addresses[0], spans);
        let mut n_sent = 0;
        // Waits until every segment of this moment has gone.
        let newest = segments(&journal).pop().unwrap();
        while segments(&journal)[0] <= newest {
            send(&addresses[0], &[filler(n_fillers)]);
            n_fillers += 1;
            n_sent += 1;
            // A thread carries at most 1 MiB at once, which is two fillers that a busy machine has
            // not closed yet.
            if n_sent % FILLERS_AT_ONCE == 0 {
                eventually("the fillers close", || {
                    (closed(&addresses[1]) >= n_sent).then_some(())
                })
                .await;
            }
            // Waits until nothing has to be carried. Each start begins a segment.
            let name = "spanscore_journal_segments{log=\"requests\"}";
            eventually("few segments are left", || {
                (metric(&addresses[1], name) <= 5.0 + n_restarts as f64).then_some(())
            })
            .await;
        }
        let of_carrying = |name| metric(&addresses[1], name);
        assert!(of_carrying("spanscore_journal_carried_bytes_total") > 0.0);
        assert_eq!(of_carrying("spanscore_journal_uncarried_traces_total"), 0.0);
        sidecar.signal(Signal::KILL);
        sidecar.child.wait().unwrap();
        sidecar = start_kept();
        addresses = sidecar.addresses();
    }
    send(&addresses[0], &[root]);
    wait_for_scores(&backend, N_CRITERIA).await;
    sidecar.signal(Signal::TERM);
    assert_eq!(sidecar.ended().0, 0);
    let received = scores(&backend);
    assert_eq!(received.len(), N_CRITERIA);
    for seen in received.values() {
        assert_eq!(seen.len(), 1, "a score came twice");
        let score = Span::decode(&seen[0][..]).unwrap();
        assert_eq!(completeness(&score), "root_ended");
    }
    let mut n_forwarded = 0;
    for arrived in backend.arrived() {
        if arrived.signal != "traces" {
            continue;
        }
        let request = ExportTraceServiceRequest::decode(arrived.body).unwrap();
        let scopes = request
            .resource_spans
            .into_iter()
            .flat_map(|it| it.scope_spans);
        let spans = scopes.flat_map(|scope| scope.spans);
        n_forwarded += spans.filter(|span| span.name == "execute_tool").count();
    }
    assert_eq!(n_forwarded, 3, "what is carried is not forwarded again");
}
