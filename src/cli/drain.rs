//! `spanscore drain`: tells a running sidecar that it is about to be stopped, so that traces whose
//! root has ended are judged sooner. Sends SIGUSR1, and knows nothing of what the sidecar makes of
//! it.

use std::io;

use rustix::process::{Pid, Signal, kill_process};

use super::args::Drain;
use super::{Exit, Streams};

/// Runs the command.
pub(super) fn drain(args: &Drain, streams: &mut Streams<'_>) -> io::Result<Exit> {
    let Some(pid) = Pid::from_raw(args.pid) else {
        return streams
            .complain("a process id is at least 1")
            .map(|()| Exit::Usage);
    };
    match kill_process(pid, Signal::USR1) {
        Ok(()) => Ok(Exit::Fine),
        Err(error) => {
            let remedy =
                "name the sidecar's process with --pid; in a container of its own it is process 1";
            streams
                .complain(&format!(
                    "cannot tell process {} to drain: {error}; {remedy}",
                    args.pid
                ))
                .map(|()| Exit::NoStart)
        }
    }
}
