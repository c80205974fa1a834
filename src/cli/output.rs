//! Standard output that tolerates a closed pipe, and the colours of a terminal. Knows streams, not what is written.

use std::io::{self, IsTerminal, Write};

/// Where results go: standard output behind a buffer, stripped of colour where nobody sees it.
pub(crate) struct Output {
    stream: Box<dyn Write>,
    /// Somebody sees colours: a terminal, and `NO_COLOR` is not set.
    pub(crate) colour: bool,
    closed: bool,
}

impl Output {
    /// Standard output. `no_color` is whether the variable `NO_COLOR` holds anything (no-color.org).
    pub(crate) fn stdout(no_color: bool) -> Self {
        let stdout = io::stdout();
        let colour = stdout.is_terminal() && !no_color;
        Self { stream: Box::new(io::BufWriter::new(stdout)), colour, closed: false }
    }

    /// A file in its place.
    pub(crate) fn file(path: &str) -> io::Result<Self> {
        Ok(Self { stream: Box::new(io::BufWriter::new(std::fs::File::create(path)?)), colour: false, closed: false })
    }

    /// Write a text. A reader that has gone away (`| head`) is no error: the rest is dropped.
    pub(crate) fn write(&mut self, text: &str) -> io::Result<()> {
        let outcome = if self.closed { Ok(()) } else { self.stream.write_all(text.as_bytes()) };
        self.tolerate(outcome)
    }

    /// Write a text and a line end.
    pub(crate) fn line(&mut self, text: &str) -> io::Result<()> {
        self.write(text)?;
        self.write("\n")
    }

    /// Hand everything on.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        let outcome = if self.closed { Ok(()) } else { self.stream.flush() };
        self.tolerate(outcome)
    }

    fn tolerate(&mut self, outcome: io::Result<()>) -> io::Result<()> {
        match outcome {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                self.closed = true;
                Ok(())
            }
            outcome => outcome,
        }
    }
}
