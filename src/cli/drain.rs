//! `spanscore drain`: makes a running sidecar judge finished traces sooner and send scores
//! immediately. Sends SIGUSR1 only to a sidecar, because the signal kills any program that does not
//! handle it.

use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;

use clap::Args;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process, test_kill_process};

use super::global::NoConfiguration;
use super::{Exit, Streams};

/// Options of `drain`.
#[derive(Debug, Args)]
pub(super) struct Drain {
    /// Process id of the sidecar (1 in a container); must be a `spanscore run`.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(i32).range(1..))]
    pub(super) pid: i32,
    #[command(flatten)]
    pub(super) no_configuration: NoConfiguration,
}

const NAME: &str = "spanscore";
const REMEDY: &str =
    "pass the sidecar's process id with --pid; in a container of its own it is 1, the default";

/// The program that a process runs, as far as the system shows it.
#[derive(Debug, PartialEq, Eq)]
enum Found {
    Sidecar,
    /// spanscore with a subcommand other than `run`; SIGUSR1 would kill it.
    OtherCommand,
    /// Another program. The text is its name.
    OtherProgram(String),
}

pub(super) fn drain(args: &Drain, streams: &mut Streams<'_>) -> io::Result<Exit> {
    let id = args.pid;
    let Some(pid) = Pid::from_raw(id) else {
        return streams
            .complain("a process id must be at least 1")
            .map(|()| Exit::Usage);
    };
    match test_kill_process(pid) {
        // The process exists. The code below checks whether it is a sidecar.
        Ok(()) | Err(Errno::PERM) => {}
        Err(error) => {
            return streams
                .complain(&format!("there is no process {id}: {error}; {REMEDY}"))
                .map(|()| Exit::NoStart);
        }
    }
    let error = match found(id) {
        Found::Sidecar => match kill_process(pid, Signal::USR1) {
            Ok(()) => {
                writeln!(
                    streams.out,
                    "process {id} drains: it is no longer ready, closes traces sooner and sends \
                     scores at once; stop it with SIGTERM"
                )?;
                return Ok(Exit::Fine);
            }
            Err(error) => {
                let error = format!("cannot signal process {id}: {error}; {REMEDY}");
                return streams.complain(&error).map(|()| Exit::NoStart);
            }
        },
        Found::OtherCommand => "it runs spanscore, but not as a sidecar".to_owned(),
        Found::OtherProgram(name) => format!("it runs `{name}`, not spanscore"),
    };
    streams
        .complain(&format!("did not signal process {id}: {error}; {REMEDY}"))
        .map(|()| Exit::Usage)
}

fn found(id: i32) -> Found {
    let name = name_of(id);
    if name != NAME && Some(&name) != own_name().as_ref() {
        return Found::OtherProgram(name);
    }
    match fs::read_to_string(format!("/proc/{id}/status")) {
        Ok(status) if !catches_usr1(&status) => Found::OtherCommand,
        // Without /proc, the name must suffice.
        _ => Found::Sidecar,
    }
}

/// Returns the name of the program that process `id` runs: the file name of `/proc/ID/exe`. If that
/// link is unreadable, as for another user's process, the result is the `comm` name.
fn name_of(id: i32) -> String {
    let executable = fs::read_link(format!("/proc/{id}/exe"));
    if let Some(name) = executable.ok().and_then(|path| file_name(&path)) {
        return name;
    }
    let comm = fs::read_to_string(format!("/proc/{id}/comm"));
    let name = comm.or_else(|_| {
        let arguments = ["-o", "comm=", "-p", &id.to_string()];
        let listed = Command::new("ps").args(arguments).output()?;
        Ok::<_, io::Error>(String::from_utf8_lossy(&listed.stdout).into_owned())
    });
    let name = name.unwrap_or_default();
    file_name(Path::new(name.trim())).unwrap_or_else(|| "unknown".to_owned())
}

fn own_name() -> Option<String> {
    file_name(&std::env::current_exe().ok()?)
}

fn file_name(path: &Path) -> Option<String> {
    let name = path.file_name()?.to_string_lossy();
    // If an update has replaced the file of the running program, the system appends " (deleted)".
    Some(name.trim_end_matches(" (deleted)").to_owned())
}

/// Returns true if a process with this `/proc/…/status` handles SIGUSR1, or if the text does not
/// show the handled signals.
fn catches_usr1(status: &str) -> bool {
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let caught = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    // Signal 1 is bit 0.
    let bit = 1 << (Signal::USR1.as_raw() - 1);
    caught.is_none_or(|caught| caught & bit != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_process_catches_is_read_from_its_status() {
        assert!(catches_usr1(
            "Name:\tspanscore\nSigCgt:\t0000000000000200\n"
        ));
        assert!(!catches_usr1(
            "Name:\tspanscore\nSigCgt:\t0000000000004002\n"
        ));
        assert!(catches_usr1("Name:\tspanscore\n"), "not told");
    }

    #[test]
    fn an_updated_program_keeps_its_name() {
        let path = Path::new("/usr/bin/spanscore (deleted)");
        assert_eq!(file_name(path).as_deref(), Some("spanscore"));
    }
}
