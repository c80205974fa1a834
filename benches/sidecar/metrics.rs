//! Scrapes the metrics of a running spanscore.

use std::io::{self, Read, Write};
use std::net::TcpStream;

pub(crate) fn metrics_of(admin: &str) -> io::Result<Metrics> {
    let mut stream = TcpStream::connect(admin)?;
    write!(
        stream,
        "GET /metrics HTTP/1.1\r\nhost: {admin}\r\nconnection: close\r\n\r\n"
    )?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(Metrics(text))
}

#[derive(Default)]
pub(crate) struct Metrics(String);

impl Metrics {
    pub(crate) fn sum(&self, name: &str) -> f64 {
        let values = self.0.lines().filter_map(|line| {
            let rest = line.strip_prefix(name)?;
            let value = if rest.starts_with('{') {
                rest.rsplit_once("} ")?.1
            } else {
                rest.strip_prefix(' ')?
            };
            value.parse::<f64>().ok()
        });
        // The `sum` of no series would be -0.
        values.fold(0.0, |sum, value| sum + value)
    }

    /// Returns the value of one series, named with its labels as in `/metrics`; 0 if it is missing.
    pub(crate) fn one(&self, series: &str) -> f64 {
        let line = self
            .0
            .lines()
            .find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        line.and_then(|value| value.parse().ok())
            .unwrap_or_default()
    }
}
