//! `spanscore health`: exits with 0 if the running sidecar is ready. Serves as a probe in images
//! without a shell or curl.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use rustls::{ClientConnection, StreamOwned};

use super::{Exit, Streams};
use crate::config::{ClientTls, Config};
use crate::tls;

/// Options of `health`.
#[derive(Debug, Args)]
pub(super) struct Health {
    /// Seconds to wait for a response.
    #[arg(long, value_name = "SECONDS", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=60))]
    pub(super) timeout: u64,
}

pub(super) fn health(
    args: &Health,
    config: &Config,
    streams: &mut Streams<'_>,
) -> io::Result<Exit> {
    let address = reachable(config.admin.listen);
    match ask(
        address,
        config.admin.tls.is_some(),
        Duration::from_secs(args.timeout),
    ) {
        Ok((true, body)) => {
            writeln!(streams.out, "{}", body.trim_end())?;
            Ok(Exit::Fine)
        }
        Ok((false, body)) => streams
            .complain(&format!("not ready: {}", body.trim_end()))
            .map(|()| Exit::CriterionFailed),
        Err(error) => {
            let message = format!(
                "no response from {address}: {error}; is the sidecar running with this \
                 `admin.listen`?"
            );
            streams.complain(&message).map(|()| Exit::CriterionFailed)
        }
    }
}

/// Returns the address at which clients reach a listener: the loopback address if the listener is
/// bound to all addresses.
pub(super) fn reachable(listen: SocketAddr) -> SocketAddr {
    let ip = match listen.ip() {
        ip if !ip.is_unspecified() => ip,
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::LOCALHOST),
    };
    SocketAddr::new(ip, listen.port())
}

/// Sends an HTTP/1.0 request. The response ends when the server closes the connection.
fn ask(address: SocketAddr, is_tls: bool, timeout: Duration) -> io::Result<(bool, String)> {
    let stream = TcpStream::connect_timeout(&address, timeout)?;
    stream.set_read_timeout(Some(timeout))?;
    stream.set_write_timeout(Some(timeout))?;
    if !is_tls {
        return exchange(address, stream);
    }
    // Do not verify the certificate; the kubelet does not verify it either. A certificate names the
    // host that clients connect to, not this address, and the exchange contains no secrets.
    let tls = ClientTls {
        insecure_skip_verify: true,
        ..ClientTls::default()
    };
    let config = tls::client_config(&tls, &Arc::default()).map_err(io::Error::other)?;
    let connection =
        ClientConnection::new(Arc::new(config), address.ip().into()).map_err(io::Error::other)?;
    exchange(address, StreamOwned::new(connection, stream))
}

fn exchange(address: SocketAddr, mut stream: impl Read + Write) -> io::Result<(bool, String)> {
    write!(stream, "GET /readyz HTTP/1.0\r\nHost: {address}\r\n\r\n")?;
    let mut answer = Vec::new();
    let read = stream.take(64 << 10).read_to_end(&mut answer);
    // Accept a response even if the server did not close TLS properly.
    if answer.is_empty() {
        read?;
    }
    let answer = String::from_utf8_lossy(&answer);
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let status = head
        .split(' ')
        .nth(1)
        .ok_or_else(|| io::Error::other("the response is not HTTP"))?;
    Ok((status == "200", body.to_owned()))
}
