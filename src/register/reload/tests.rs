//! Tests reloads when files change, on tokio's paused clock with real files. The kernel's
//! notifications are not tested, because the program does not use them.

use std::fs;
use std::future;
use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use arc_swap::ArcSwap;
use tokio::task::JoinSet;

use super::super::set::ChangeOptions;
use super::super::{RegisterSetup, merge, open};
use super::*;
use crate::cli::configuration::Disk;
use crate::sidecar;
use crate::telemetry::Telemetry;

const INTERVAL: Duration = Duration::from_secs(5);

struct Fixture {
    folder: tempfile::TempDir,
    register: Register,
    telemetry: Arc<Telemetry>,
    _watching: JoinSet<()>,
}

fn text(name: &str) -> String {
    format!(
        "criteria: [{{ name: {name}, evaluate: {{ tool_call_order: {{ tool_calls_order: [x] }} }} \
         }}]\n"
    )
}

fn start_with(
    main: &str,
    files: Arc<dyn Files + Send + Sync>,
    fill: impl FnOnce(&Path),
) -> Fixture {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("spanscore.yaml"), main).unwrap();
    fill(folder.path());
    start_in(folder, files, Start::Sound)
}

/// Starts a reloader in a folder in which the main file may be missing.
fn start_in(
    folder: tempfile::TempDir,
    files: Arc<dyn Files + Send + Sync>,
    start: Start,
) -> Fixture {
    let path = folder.path().join("spanscore.yaml");
    let origin = ConfigOrigin {
        may_be_absent: !path.exists(),
        start,
        path,
        environment: BTreeMap::new(),
        flags: Vec::new(),
        files,
        settle_time: SETTLE_TIME,
    };
    let recorder = Recorder {
        files: &Disk,
        recorded: RefCell::default(),
    };
    let config = match start {
        Start::Sound => load(&origin, &recorder).0.unwrap().config,
        Start::Unsound => Config::default(),
    };
    let rules = merge::rules(&config, config.criteria.clone(), None);
    let setup = RegisterSetup {
        config,
        origin: Some(origin),
        rules: Arc::new(ArcSwap::from_pointee(rules)),
        coverage: Arc::default(),
        renew_headers: Box::new(|_| Ok(())),
        clock: sidecar::now,
    };
    let telemetry = Arc::new(Telemetry::default());
    let (register, reloader) = open(setup, &telemetry).unwrap();
    let mut watching = JoinSet::new();
    watching.spawn(reloader.run(
        telemetry.heartbeat("register", time::Instant::now().into_std()),
        future::pending(),
    ));
    Fixture {
        folder,
        register,
        telemetry,
        _watching: watching,
    }
}

fn start(main: &str) -> Fixture {
    start_with(main, Arc::new(Disk), |_| ())
}

impl Fixture {
    fn names(&self) -> Vec<String> {
        self.register
            .0
            .rules
            .load()
            .criteria
            .iter()
            .map(|criterion| criterion.name.clone())
            .collect()
    }

    fn write(&self, text: &str) {
        fs::write(self.folder.path().join("spanscore.yaml"), text).unwrap();
    }

    async fn poll(&self) {
        time::sleep(INTERVAL + Duration::from_secs(3)).await;
    }

    fn n_refused(&self) -> u64 {
        self.telemetry
            .counter("spanscore_config_reloads_total", &[("result", "refused")])
    }
}

#[tokio::test(start_paused = true)]
async fn a_session_criterion_waits_for_the_restart_that_ends_replicas() {
    let fixture = start("assemble: { peers: gateway }\n");
    fixture.poll().await;
    let of_session = text("a").replace("name: a,", "name: a, scope: session,");
    fixture.write(&of_session);
    fixture.poll().await;
    assert_eq!((fixture.n_refused(), fixture.names().len()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_file_that_changes_is_in_force_after_the_next_poll() {
    let fixture = start(&text("a"));
    fixture.poll().await;
    assert_eq!(fixture.names(), ["a"]);
    fixture.write(&text("b"));
    fixture.poll().await;
    assert_eq!(fixture.names(), ["b"]);
    // Editors save a file in this way: they write a new file and rename it.
    fs::write(fixture.folder.path().join("new"), text("c")).unwrap();
    fs::rename(
        fixture.folder.path().join("new"),
        fixture.folder.path().join("spanscore.yaml"),
    )
    .unwrap();
    fixture.poll().await;
    assert_eq!(fixture.names(), ["c"]);
}

#[tokio::test(start_paused = true)]
async fn a_file_that_appears_after_the_start_is_read_and_must_then_stay() {
    let folder = tempfile::tempdir().unwrap();
    let fixture = start_in(folder, Arc::new(Disk), Start::Sound);
    fixture.poll().await;
    assert_eq!((fixture.names().len(), fixture.n_refused()), (0, 0));
    fixture.write(&text("late"));
    fixture.poll().await;
    assert_eq!(fixture.names(), ["late"]);
    fs::remove_file(fixture.folder.path().join("spanscore.yaml")).unwrap();
    fixture.poll().await;
    assert_eq!(fixture.names(), ["late"], "criteria do not vanish with it");
    assert_eq!(fixture.n_refused(), 1);
}

#[tokio::test(start_paused = true)]
async fn mistakes_that_a_start_passed_over_are_reported_at_once() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(
        folder.path().join("spanscore.yaml"),
        "criteria: [{ name: x }]",
    )
    .unwrap();
    let fixture = start_in(folder, Arc::new(Disk), Start::Unsound);
    // The next regular poll is much later.
    time::sleep(Duration::from_secs(1)).await;
    assert_eq!(fixture.n_refused(), 1);
    fixture.write(&text("mended"));
    fixture.poll().await;
    assert_eq!(fixture.names(), ["mended"]);
}

#[tokio::test(start_paused = true)]
async fn a_swapped_config_map_and_a_new_criteria_file_are_seen() {
    let file = |name: &str| text(name);
    let fixture = start_with(
        "criteria_files: [\"..data/*.yaml\"]\n",
        Arc::new(Disk),
        |folder| {
            for (version, name) in [("1", "a"), ("2", "b")] {
                fs::create_dir(folder.join(version)).unwrap();
                fs::write(folder.join(version).join("one.yaml"), file(name)).unwrap();
            }
            symlink("1", folder.join("..data")).unwrap();
        },
    );
    assert_eq!(fixture.names(), ["a"]);
    symlink("2", fixture.folder.path().join("..data_tmp")).unwrap();
    fs::rename(
        fixture.folder.path().join("..data_tmp"),
        fixture.folder.path().join("..data"),
    )
    .unwrap();
    fixture.poll().await;
    assert_eq!(fixture.names(), ["b"]);
    fs::write(fixture.folder.path().join("2/two.yaml"), file("c")).unwrap();
    fixture.poll().await;
    assert_eq!(fixture.names(), ["b", "c"]);
}

#[tokio::test(start_paused = true)]
async fn a_bad_file_keeps_the_last_good_set_and_is_logged_once() {
    let fixture = start(&text("a"));
    fixture.write("criteria: [{ name: b, evaluate: { tool_call_ordr: {} } }]\n");
    for _ in 0..3 {
        fixture.poll().await;
    }
    assert_eq!(
        (fixture.names(), fixture.n_refused()),
        (vec!["a".to_owned()], 1)
    );
    assert_eq!(
        fixture
            .telemetry
            .gauge("spanscore_config_reload_failed", &[]),
        1
    );
    let last = fixture.register.status()["reload"]["last"].clone();
    assert_eq!(last["result"], "refused");
    assert!(
        last["problems"]
            .as_str()
            .unwrap()
            .contains("spanscore.yaml:1:"),
        "{last}"
    );
    fs::remove_file(fixture.folder.path().join("spanscore.yaml")).unwrap();
    fixture.poll().await;
    assert_eq!(
        (fixture.names(), fixture.n_refused()),
        (vec!["a".to_owned()], 2)
    );
    fixture.write(&text("b"));
    fixture.poll().await;
    assert_eq!(
        (
            fixture.names(),
            fixture
                .telemetry
                .gauge("spanscore_config_reload_failed", &[])
        ),
        (vec!["b".to_owned()], 0)
    );
}

/// Files whose main file changes at each read, as long as the test wants.
struct Restless {
    writing: AtomicBool,
    n_reads: AtomicUsize,
}

impl Files for Restless {
    fn read(&self, path: &Path) -> Result<String, String> {
        let n_reads = self.n_reads.fetch_add(1, Ordering::Relaxed);
        if self.writing.load(Ordering::Relaxed) {
            return Ok(text(&format!("half{n_reads}")));
        }
        Disk.read(path)
    }

    fn list(&self, folder: &Path, glob: &str) -> Result<Vec<PathBuf>, String> {
        Disk.list(folder, glob)
    }
}

#[tokio::test(start_paused = true)]
async fn a_file_that_is_being_written_is_not_taken_until_two_reads_agree() {
    let files = Arc::new(Restless {
        writing: AtomicBool::new(true),
        n_reads: AtomicUsize::new(0),
    });
    let fixture = start_with(&text("a"), files.clone(), |_| ());
    fixture.poll().await;
    assert_eq!(
        (fixture.names(), fixture.n_refused()),
        (vec!["a".to_owned()], 1),
        "each read found something else"
    );
    files.writing.store(false, Ordering::Relaxed);
    fixture.write(&text("whole"));
    fixture.poll().await;
    assert_eq!(fixture.names(), ["whole"]);
}

#[tokio::test(start_paused = true)]
async fn who_asks_for_a_reload_is_told_what_came_of_it() {
    let fixture = start("reload: { interval: 0 }\n");
    fixture.write(&format!(
        "{}forward: {{ timeout: 1s }}\nreload: {{ interval: 0 }}\n",
        text("a")
    ));
    fixture.poll().await;
    assert!(fixture.names().is_empty(), "nobody looks by himself");
    let ReloadOutcome::Applied {
        changed,
        needs_restart,
        ..
    } = fixture.register.reload().await.unwrap()
    else {
        panic!()
    };
    assert_eq!(
        (changed, needs_restart, fixture.names()),
        (
            true,
            vec!["forward.timeout".to_owned()],
            vec!["a".to_owned()]
        )
    );
    let tools = "tools: { name_attributes: [acme.tool] }\nreload: { interval: 0 }\n";
    fixture.write(&format!("{}{tools}", text("a")));
    let ReloadOutcome::Applied {
        changed, settings, ..
    } = fixture.register.reload().await.unwrap()
    else {
        panic!()
    };
    assert_eq!((changed, settings), (false, vec!["tools".to_owned()]));
    fixture.write("criteria: 1\n");
    assert!(matches!(
        fixture.register.reload().await.unwrap(),
        ReloadOutcome::Refused { problems } if problems.contains("`criteria`"),
    ));
    fixture.register.reload_soon();
    fixture.register.reload_soon();
    assert_eq!(fixture.names(), ["a"]);
}

#[tokio::test(start_paused = true)]
async fn what_the_api_registered_outlives_a_reload_and_what_ran_out_goes() {
    let fixture = start(&text("a"));
    let change = ChangeOptions {
        ttl: Some(Duration::from_nanos(1)),
        ..Default::default()
    };
    let criterion = "{ name: b, evaluate: { tool_call_order: { tool_calls_order: [x] } } }";
    fixture.register.upsert(None, criterion, &change).unwrap();
    fixture
        .register
        .upsert(None, &criterion.replace("b,", "c,"), &Default::default())
        .unwrap();
    fixture.write(&text("d"));
    fixture.poll().await;
    assert_eq!(fixture.names(), ["d", "c"]);
    assert_eq!(
        fixture
            .telemetry
            .counter("spanscore_registrations_expired_total", &[]),
        1
    );
}
