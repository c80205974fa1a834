//! Starts and queries the processes of a benchmark, measures them by the operating system's
//! figures, and ends them when they are dropped.

use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::clock::{monotonic_nanos, pause};

/// Maximum time in which a process must end on request. A sidecar has twenty seconds to deliver its
/// queues.
const END_TIMEOUT: Duration = Duration::from_secs(25);

/// A process, which may answer queries on its standard output.
pub(crate) struct Process {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: Option<BufReader<ChildStdout>>,
}

impl Process {
    /// Starts this benchmark's binary in another role. Returns the process, and the number that it
    /// prints when it is ready.
    pub(crate) fn role(arguments: &[&str]) -> io::Result<(Self, u64)> {
        let mut command = Command::new(std::env::current_exe()?);
        let mut child = command
            .arg(ROLE)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take().map(BufReader::new));
        let mut process = Self {
            child,
            stdin,
            stdout,
        };
        let ready = process.line()?;
        let number = ready
            .strip_prefix("ready ")
            .and_then(|number| number.parse().ok());
        number
            .map(|number| (process, number))
            .ok_or_else(|| io::Error::other(format!("{arguments:?} said {ready:?}")))
    }

    /// Wraps the process of another program, which answers no queries.
    pub(crate) fn other(child: Child) -> Self {
        Self {
            child,
            stdin: None,
            stdout: None,
        }
    }

    pub(crate) fn child_mut(&mut self) -> &mut Child {
        &mut self.child
    }

    pub(crate) fn ask(&mut self, question: &str) -> io::Result<String> {
        self.tell(question)?;
        self.line()
    }

    /// Sends one line and reads the lines of the reply; the line `end` ends the reply.
    pub(crate) fn ask_for_list(&mut self, question: &str) -> io::Result<Vec<String>> {
        self.tell(question)?;
        let mut lines = Vec::new();
        loop {
            let line = self.line()?;
            if line == "end" {
                return Ok(lines);
            }
            lines.push(line);
        }
    }

    fn tell(&mut self, question: &str) -> io::Result<()> {
        let stdin = self.stdin.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        writeln!(stdin, "{question}")
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        self.stdout
            .as_mut()
            .ok_or(io::ErrorKind::BrokenPipe)?
            .read_line(&mut line)?;
        if line.is_empty() {
            Err(io::ErrorKind::UnexpectedEof.into())
        } else {
            Ok(line.trim_end().to_owned())
        }
    }

    /// Returns the CPU time of the process's threads that have not ended, in user mode and in the
    /// kernel. The resolution is a nanosecond; `utime` and `stime` of procfs count hundredths of a
    /// second.
    pub(crate) fn cpu(&self) -> io::Result<Duration> {
        let mut nanos = 0;
        for task in fs::read_dir(format!("/proc/{}/task", self.child.id()))? {
            // A thread may end after it has been listed.
            let Ok(text) = fs::read_to_string(task?.path().join("schedstat")) else {
                continue;
            };
            nanos += text
                .split(' ')
                .next()
                .and_then(|number| number.parse::<u64>().ok())
                .unwrap_or_default();
        }
        Ok(Duration::from_nanos(nanos))
    }

    /// Returns the CPU time in user mode and in the kernel, in ticks.
    pub(crate) fn ticks(&self) -> io::Result<[f64; 2]> {
        Ok([self.stat(11)?, self.stat(12)?])
    }

    /// Returns the number of pages that the kernel has mapped for the process without reading from
    /// disk.
    pub(crate) fn n_page_faults(&self) -> io::Result<f64> {
        self.stat(7)
    }

    /// Returns a field of `/proc/PID/stat`, counted from the state of the process.
    fn stat(&self, at: usize) -> io::Result<f64> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        let rest = stat.rsplit(')').next().unwrap_or_default();
        let field = rest.split_whitespace().nth(at);
        let number = field.and_then(|field| field.parse().ok());
        number.ok_or_else(|| io::Error::other("a number is missing in /proc/PID/stat"))
    }

    pub(crate) fn n_sleeps(&self) -> io::Result<u64> {
        let mut n_sleeps = 0;
        for task in fs::read_dir(format!("/proc/{}/task", self.child.id()))? {
            let text = fs::read_to_string(task?.path().join("status")).unwrap_or_default();
            let line = |line: &str| {
                line.strip_prefix("voluntary_ctxt_switches:")?
                    .trim()
                    .parse()
                    .ok()
            };
            n_sleeps += text.lines().find_map(line).unwrap_or(0_u64);
        }
        Ok(n_sleeps)
    }

    pub(crate) fn forget_peak(&self) -> io::Result<()> {
        fs::write(format!("/proc/{}/clear_refs", self.child.id()), "5")
    }

    /// Returns the resident memory in bytes, current and peak.
    pub(crate) fn memory(&self) -> io::Result<(u64, u64)> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let bytes = |key: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(key))?;
            Some(line.trim().trim_end_matches(" kB").parse::<u64>().ok()? << 10)
        };
        bytes("VmRSS:")
            .zip(bytes("VmHWM:"))
            .ok_or_else(|| io::Error::other("no memory in /proc/PID/status"))
    }

    /// Returns true if this process listens on the port. If another server used the port, the
    /// benchmark would measure that server.
    pub(crate) fn listens_on(&self, port: u16) -> io::Result<bool> {
        let mut inodes = Vec::new();
        for table in ["/proc/net/tcp", "/proc/net/tcp6"] {
            for line in fs::read_to_string(table)
                .unwrap_or_default()
                .lines()
                .skip(1)
            {
                let fields: Vec<&str> = line.split_whitespace().collect();
                let (Some(local), Some(&"0A"), Some(inode)) =
                    (fields.get(1), fields.get(3), fields.get(9))
                else {
                    continue;
                };
                if local.ends_with(&format!(":{port:04X}")) {
                    inodes.push(format!("socket:[{inode}]"));
                }
            }
        }
        for descriptor in fs::read_dir(format!("/proc/{}/fd", self.child.id()))? {
            let target = fs::read_link(descriptor?.path()).unwrap_or_default();
            if inodes
                .iter()
                .any(|inode| target.as_os_str() == inode.as_str())
            {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

impl Drop for Process {
    #[expect(clippy::print_stderr, reason = "there is nobody to return it to")]
    fn drop(&mut self) {
        // On SIGTERM a sidecar stops by itself, so that an instrumented one writes its profile. The
        // process may have ended already.
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        let deadline = monotonic_nanos() + END_TIMEOUT.as_nanos() as u64;
        while matches!(self.child.try_wait(), Ok(None)) && monotonic_nanos() < deadline {
            pause(Duration::from_millis(1));
        }
        if matches!(self.child.try_wait(), Ok(None)) {
            eprintln!(
                "process {} did not end when it was asked to",
                self.child.id()
            );
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// The argument that makes this binary a helper.
pub(crate) const ROLE: &str = "--role";
