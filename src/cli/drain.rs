//! `spanscore drain`: announces to a running sidecar that it will be stopped, so that traces whose
//! root has ended are judged sooner. Sends SIGUSR1; knows nothing of how the sidecar reacts.

use std::io;

use rustix::process::{Pid, Signal, kill_process};

use super::args::Drain;
use super::{Exit, Streams};

/// Runs the command.
pub(super) fn drain(args: &Drain, streams: &mut Streams<'_>) -> io::Result<Exit> {
    let Some(pid) = Pid::from_raw(args.pid) else {
        return streams
            .complain("a process id must be at least 1")
            .map(|()| Exit::Usage);
    };
    match kill_process(pid, Signal::USR1) {
        Ok(()) => Ok(Exit::Fine),
        Err(error) => {
            let remedy = "pass the sidecar's process id with --pid; in its own container it is 1";
            streams
                .complain(&format!(
                    "cannot signal process {}: {error}; {remedy}",
                    args.pid
                ))
                .map(|()| Exit::NoStart)
        }
    }
}
